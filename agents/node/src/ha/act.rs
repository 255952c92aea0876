//! What the HA agent reads and does: the state of an instance, its restart, its Eviction.

use std::time::Duration;

use cobalt_api::conditions::{self, EvictionCondition};
use cobalt_api::eviction::{Eviction, EvictionSpec};
use cobalt_libvirt::{
    Connection, CreateFlags, DestroyFlags, Domain, DomainState, DomainStatus, Error, ListDomains,
    StatsGroups, Supported,
};
use cobalt_runtime::{Backoff, chain};
use kube::{Api, ResourceExt};
use uuid::Uuid;

use super::decide::{Restart, Situation};
use crate::context::Context;
use crate::evictions;

const DEADLINE: Duration = Duration::from_secs(15);
/// How many Evictions of one instance on one host may be kept side by side.
const NUMBERS: u32 = 100;
/// How often the API server is asked for an Eviction before that is a failure.
const TRIES: u32 = 20;

/// The state of every instance.
pub async fn states(connection: &Connection) -> Result<Vec<(Domain, DomainStatus)>, Error> {
    if let Some(stats) = connection.all_stats(StatsGroups::STATE).await.supported()? {
        let known = |stats: cobalt_libvirt::DomainStats| {
            let status = stats.status()?;
            Some((stats.domain, status))
        };
        return Ok(stats.into_iter().filter_map(known).collect());
    }
    let mut all = Vec::new();
    for domain in connection.domains(ListDomains::ALL).await? {
        match connection.state(&domain).await {
            Ok(status) => all.push((domain, status)),
            Err(error) if error.is_closed() || error.is_timeout() => return Err(error),
            Err(_) => {}
        }
    }
    Ok(all)
}

/// How an instance is now.
pub async fn situation(
    connection: &Connection,
    uuid: Uuid,
) -> Result<(Option<Domain>, Situation), Error> {
    let domain = match connection.lookup_by_uuid(uuid).await {
        Ok(domain) => domain,
        Err(error) if error.is_no_domain() => return Ok((None, Situation::Gone)),
        Err(error) => return Err(error),
    };
    match connection.state(&domain).await {
        Ok(status) => Ok((Some(domain), of(status))),
        Err(error) if error.is_no_domain() => Ok((None, Situation::Gone)),
        Err(error) => Err(error),
    }
}

fn of(status: DomainStatus) -> Situation {
    match (status.state, status.reason_name()) {
        (DomainState::Running | DomainState::Blocked, _) => Situation::Running,
        (DomainState::Crashed, _)
        | (DomainState::Paused, Some("io-error" | "watchdog" | "crashed")) => Situation::Halted,
        (DomainState::Shutoff, Some("crashed" | "failed")) => Situation::Off,
        _ => Situation::Handled,
    }
}

/// Restarts an instance.
pub async fn restart(connection: &Connection, domain: &Domain, how: Restart) -> Result<(), Error> {
    match how {
        Restart::Start => connection.create(domain, CreateFlags::NONE).await.map(drop),
        Restart::Reset => match connection.reset(domain).await {
            Ok(()) => resume(connection, domain).await,
            // A driver that cannot reset can end and start.
            Err(error) if error.is_not_supported() => {
                connection.destroy(domain, DestroyFlags::NONE).await?;
                connection.create(domain, CreateFlags::NONE).await.map(drop)
            }
            Err(error) => Err(error),
        },
    }
}

/// Lets a machine run that was halted; one that runs is left as it is.
async fn resume(connection: &Connection, domain: &Domain) -> Result<(), Error> {
    match connection.resume(domain).await {
        Err(error) if error.is_operation_invalid() => Ok(()),
        other => other,
    }
}

/// Asks for an instance to be moved; the name of the Eviction that does it. One that is under way
/// already serves.
pub async fn evict(ctx: &Context, uuid: Uuid, reason: &str) -> Result<String, String> {
    let api: Api<Eviction> = Api::all(ctx.client.clone());
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
    let mut last = String::new();
    for _ in 0..TRIES {
        match ask(&api, ctx, uuid, reason).await {
            Ok(name) => return Ok(name),
            Err(Refused::Now(error)) => last = error,
            Err(Refused::Always(error)) => return Err(error),
        }
        tracing::warn!(instance = %uuid, error = last, "failed to ask for an Eviction");
        tokio::time::sleep(backoff.next_wait()).await;
    }
    Err(last)
}

enum Refused {
    Now(String),
    Always(String),
}

async fn ask(
    api: &Api<Eviction>,
    ctx: &Context,
    uuid: Uuid,
    reason: &str,
) -> Result<String, Refused> {
    // The whole host may be on its way out.
    if let Some(whole) = within(api.get_opt(&ctx.node)).await?
        && !ended(&whole)
        && concerns(&whole, uuid)
    {
        return Ok(whole.name_any());
    }
    for number in 1..=NUMBERS {
        let name = name(&ctx.node, uuid, number);
        match within(api.get_opt(&name)).await? {
            Some(eviction) if ended(&eviction) => {}
            Some(_) => return Ok(name),
            None => {
                let hypervisor = ctx.hypervisor.borrow().object().cloned();
                let spec = EvictionSpec {
                    hypervisor: ctx.node.to_string(),
                    reason: reason.to_owned(),
                    instances: vec![uuid.to_string()],
                    ..EvictionSpec::default()
                };
                let eviction = evictions::eviction(&name, spec, hypervisor.as_deref());
                within(api.create(&evictions::create_params(), &eviction)).await?;
                return Ok(name);
            }
        }
    }
    Err(Refused::Always(format!(
        "there are {NUMBERS} Evictions of it already: delete the old ones"
    )))
}

fn name(node: &str, uuid: Uuid, number: u32) -> String {
    match number {
        1 => format!("{node}-{uuid}"),
        _ => format!("{node}-{uuid}-{number}"),
    }
}

fn ended(eviction: &Eviction) -> bool {
    let Some(status) = &eviction.status else {
        return false;
    };
    status.outcome.is_some()
        || status.finished_at.is_some()
        || conditions::is_false(&status.conditions, EvictionCondition::Evicting)
}

fn concerns(eviction: &Eviction, uuid: Uuid) -> bool {
    let instances = &eviction.spec.instances;
    !eviction.spec.dry_run()
        && !eviction.spec.cancel()
        && (instances.is_empty() || instances.contains(&uuid.to_string()))
}

async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Refused> {
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => {
            // Forbidden or invalid now is forbidden or invalid in a minute, too. A conflict is
            // somebody who was faster: the next look finds it.
            let always = matches!(&error, kube::Error::Api(status)
                if matches!(status.code, 400 | 403 | 422));
            let error = chain(&error);
            Err(if always {
                Refused::Always(error)
            } else {
                Refused::Now(error)
            })
        }
        Err(_) => Err(Refused::Now(
            "the API server did not answer in time".to_owned(),
        )),
    }
}
