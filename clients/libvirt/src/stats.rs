//! Statistics of domains, many in one call, and of their jobs.

use crate::connection::Connection;
use crate::domain::{Domain, DomainStatus};
use crate::error::Error;
use crate::flags::{JobStatsFlags, StatsFlags, StatsGroups};
use crate::named::named;
use crate::procedure::{CONNECT_GET_ALL_DOMAIN_STATS, DOMAIN_ABORT_JOB, DOMAIN_GET_JOB_STATS};
use crate::typed::TypedParams;
use crate::xdr::{Reader, SMALLEST_DOMAIN, Writer, XdrResult};

/// The statistics of a domain.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainStats {
    /// Whose they are.
    pub domain: Domain,
    /// The numbers, under names like `balloon.current` or `net.0.rx.bytes`.
    pub params: TypedParams,
}

impl DomainStats {
    /// What the domain is doing; needs [`StatsGroups::STATE`].
    pub fn status(&self) -> Option<DomainStatus> {
        let number = |name| i32::try_from(self.params.get_i64(name)?).ok();
        Some(DomainStatus {
            state: number("state.state")?.into(),
            reason: number("state.reason").unwrap_or(0),
        })
    }
}

named! {
    /// What a job is.
    JobType {
        /// There is none.
        None = 0 "none";
        /// It is known when it will end.
        Bounded = 1 "bounded";
        /// It is not.
        Unbounded = 2 "unbounded";
        /// It has ended well.
        Completed = 3 "completed";
        /// It has failed.
        Failed = 4 "failed";
        /// Somebody ended it.
        Cancelled = 5 "cancelled";
    }
}

/// The statistics of a job, for example of a migration.
#[derive(Debug, Clone, PartialEq)]
pub struct JobStats {
    /// What it is; `None` if there is no job.
    pub job_type: JobType,
    /// The numbers, under names like `memory_remaining`.
    pub params: TypedParams,
}

impl Connection {
    /// Reads the statistics of all domains with one call.
    pub async fn all_stats(&self, groups: StatsGroups) -> Result<Vec<DomainStats>, Error> {
        self.all_stats_with(groups, StatsFlags::NONE).await
    }

    /// Reads the statistics of all domains with one call, in this way.
    pub async fn all_stats_with(
        &self,
        groups: StatsGroups,
        flags: StatsFlags,
    ) -> Result<Vec<DomainStats>, Error> {
        self.stats(&[], groups, flags).await
    }

    /// Reads the statistics of some domains with one call.
    pub async fn domain_stats(
        &self,
        domains: &[Domain],
        groups: StatsGroups,
    ) -> Result<Vec<DomainStats>, Error> {
        // For libvirt none is all.
        if domains.is_empty() {
            return Ok(Vec::new());
        }
        self.stats(domains, groups, StatsFlags::NONE).await
    }

    async fn stats(
        &self,
        domains: &[Domain],
        groups: StatsGroups,
        flags: StatsFlags,
    ) -> Result<Vec<DomainStats>, Error> {
        let arguments = Writer::new()
            .list(domains, Writer::domain)
            .u32(groups.bits())
            .u32(flags.bits());
        self.client
            .call(CONNECT_GET_ALL_DOMAIN_STATS, arguments, all_stats)
            .await
    }

    /// Reads the statistics of a domain's job. Without a job its type is [`JobType::None`].
    pub async fn job_stats(
        &self,
        domain: &Domain,
        flags: JobStatsFlags,
    ) -> Result<JobStats, Error> {
        let arguments = Writer::new().domain(domain).u32(flags.bits());
        self.client
            .call(DOMAIN_GET_JOB_STATS, arguments, job_stats)
            .await
    }

    /// Ends a domain's job, for example a migration; the domain runs on.
    pub async fn abort_job(&self, domain: &Domain) -> Result<(), Error> {
        self.act(DOMAIN_ABORT_JOB, domain, None).await
    }
}

pub(crate) fn all_stats(reader: &mut Reader<'_>) -> XdrResult<Vec<DomainStats>> {
    // A domain, and how many parameters it has.
    reader.list(SMALLEST_DOMAIN + 4, |reader| {
        Ok(DomainStats {
            domain: reader.domain()?,
            params: TypedParams::read(reader)?,
        })
    })
}

pub(crate) fn job_stats(reader: &mut Reader<'_>) -> XdrResult<JobStats> {
    Ok(JobStats {
        job_type: reader.i32()?.into(),
        params: TypedParams::read(reader)?,
    })
}
