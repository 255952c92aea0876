//! What libvirt says when it is asked about jobs.

use cobalt_api::migration::JobOperation;
use cobalt_libvirt::{
    Connection, Domain, DomainState, DomainStatus, Error, JobStatsFlags, ListDomains, Supported,
};
use futures::{StreamExt, stream};

use super::arrival::Arrival;
use super::book::Reading;
use super::machine::{Aftermath, Place};
use super::sample::Sample;

/// How many are asked at the same time.
const AT_ONCE: usize = 16;

/// An instance that was found in the middle of a migration.
#[derive(Debug, Clone)]
pub enum Found {
    /// It leaves.
    Leaving(Domain, Box<Sample>),
    /// It comes.
    Coming(Domain),
}

/// The job of an instance that leaves, or may.
pub async fn job(connection: &Connection, domain: &Domain) -> Result<Option<Reading>, Error> {
    match connection.job_stats(domain, JobStatsFlags::NONE).await {
        Ok(job) => match Sample::of(&job) {
            Some(sample) => Ok(Some(Reading::Job(sample))),
            None => Ok(Some(Reading::NoJob(aftermath(connection, domain).await?))),
        },
        Err(error) if error.is_no_domain() || error.is_operation_invalid() => {
            Ok(Some(Reading::NoJob(aftermath(connection, domain).await?)))
        }
        // An instance that comes, or a driver without jobs.
        Err(error) if error.is_not_supported() => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is left of a migration away.
pub async fn aftermath(connection: &Connection, domain: &Domain) -> Result<Aftermath, Error> {
    let place = match connection.state(domain).await {
        Ok(status) => place(status),
        Err(error) if error.is_no_domain() => Place::Gone,
        Err(error) => return Err(error),
    };
    let completed = match place {
        Place::Gone => None,
        Place::Here | Place::Left | Place::Off(_) => completed(connection, domain).await,
    };
    Ok(Aftermath {
        place,
        completed,
        destination: None,
    })
}

fn place(status: DomainStatus) -> Place {
    match status.state {
        DomainState::Shutoff | DomainState::Shutdown => match status.reason_name() {
            Some("migrated") => Place::Left,
            Some("crashed") => Place::Off("crashed"),
            Some("failed") => Place::Off("failed"),
            Some("destroyed") => Place::Off("was destroyed"),
            _ => Place::Off("was stopped"),
        },
        _ => Place::Here,
    }
}

/// What libvirt has kept of the last job; it stays kept for others.
async fn completed(connection: &Connection, domain: &Domain) -> Option<Sample> {
    let flags = JobStatsFlags::COMPLETED | JobStatsFlags::KEEP_COMPLETED;
    let job = connection.job_stats(domain, flags).await.ok()?;
    Sample::of(&job)
}

/// An instance that comes.
pub async fn arrival(connection: &Connection, domain: &Domain) -> Result<Arrival, Error> {
    let running = match connection.state(domain).await {
        Ok(status) => match status.state {
            DomainState::Shutoff | DomainState::Shutdown | DomainState::Crashed => None,
            DomainState::Running | DomainState::Blocked => Some(true),
            _ => Some(false),
        },
        Err(error) if error.is_no_domain() => None,
        Err(error) => return Err(error),
    };
    let completed = match running {
        Some(true) => completed(connection, domain).await,
        Some(false) | None => None,
    };
    Ok(Arrival::Look {
        running,
        completed: completed.map(Box::new),
    })
}

/// Every instance that is in the middle of a migration.
pub async fn scan(connection: &Connection) -> Result<Vec<Found>, Error> {
    let Some(domains) = connection.domains(ListDomains::ACTIVE).await.supported()? else {
        return Ok(Vec::new());
    };
    let mut looks = stream::iter(domains)
        .map(|domain| found(connection, domain))
        .buffer_unordered(AT_ONCE);
    let mut all = Vec::new();
    while let Some(look) = looks.next().await {
        all.extend(look?);
    }
    Ok(all)
}

async fn found(connection: &Connection, domain: Domain) -> Result<Option<Found>, Error> {
    match connection.job_stats(&domain, JobStatsFlags::NONE).await {
        Ok(job) => Ok(Sample::of(&job).and_then(|sample| match sample.operation {
            JobOperation::MigrationOut => Some(Found::Leaving(domain, Box::new(sample))),
            JobOperation::MigrationIn => Some(Found::Coming(domain)),
            _ => None,
        })),
        Err(error) if error.is_not_supported() => {
            // libvirt does not tell the destination about the job, only about the state.
            let status = connection.state(&domain).await.ok();
            let coming = status.is_some_and(|status| {
                status.state == DomainState::Paused && status.reason_name() == Some("migration")
            });
            Ok(coming.then_some(Found::Coming(domain)))
        }
        Err(error) if error.is_closed() || error.is_timeout() => Err(error),
        // One instance that cannot be asked does not hide the others.
        Err(_) => Ok(None),
    }
}
