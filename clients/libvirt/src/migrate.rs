//! Migrations from this host to another, which the two libvirts agree on between themselves.

use crate::connection::Connection;
use crate::domain::Domain;
use crate::error::Error;
use crate::flags::MigrateFlags;
use crate::procedure::{
    DOMAIN_MIGRATE_PERFORM3_PARAMS, DOMAIN_MIGRATE_SET_MAX_DOWNTIME, DOMAIN_MIGRATE_SET_MAX_SPEED,
    DOMAIN_MIGRATE_START_POST_COPY,
};
use crate::typed::TypedParams;
use crate::xdr::Writer;

/// How a migration is done. What is not said, libvirt chooses.
///
/// ```
/// use cobalt_libvirt::MigrateParams;
///
/// let slow = MigrateParams { bandwidth_mib: Some(1), ..MigrateParams::default() };
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MigrateParams {
    /// Where the memory is sent, if it is not the host of the destination, for example
    /// `tcp://10.0.0.2`.
    pub migrate_uri: Option<String>,
    /// Another name on the destination.
    pub destination_name: Option<String>,
    /// Another XML on the destination, which the guest must not notice.
    pub destination_xml: Option<String>,
    /// Another definition on the destination; goes with `PERSIST_DEST`.
    pub persistent_xml: Option<String>,
    /// How fast, in MiB per second.
    pub bandwidth_mib: Option<u64>,
    /// How fast after the switch to post-copy, in MiB per second.
    pub postcopy_bandwidth_mib: Option<u64>,
    /// Over how many connections; goes with `PARALLEL`.
    pub parallel_connections: Option<i32>,
    /// The address on which the destination listens.
    pub listen_address: Option<String>,
    /// The name in the certificate of the destination; goes with `TLS`.
    pub tls_destination: Option<String>,
    /// The disks that are copied, by their targets; without any, all that are not shared.
    pub disks: Vec<String>,
    /// What this crate has no name for (`VIR_MIGRATE_PARAM_...`).
    pub more: TypedParams,
}

impl MigrateParams {
    fn typed(&self) -> TypedParams {
        let texts = [
            ("migrate_uri", &self.migrate_uri),
            ("destination_name", &self.destination_name),
            ("destination_xml", &self.destination_xml),
            ("persistent_xml", &self.persistent_xml),
            ("listen_address", &self.listen_address),
            ("tls.destination", &self.tls_destination),
        ];
        let mut params = TypedParams::default();
        for (name, text) in texts {
            if let Some(text) = text {
                params = params.with(name, text.as_str());
            }
        }
        if let Some(bandwidth) = self.bandwidth_mib {
            params = params.with("bandwidth", bandwidth);
        }
        if let Some(bandwidth) = self.postcopy_bandwidth_mib {
            params = params.with("bandwidth.postcopy", bandwidth);
        }
        if let Some(connections) = self.parallel_connections {
            params = params.with("parallel.connections", connections);
        }
        for disk in &self.disks {
            params = params.with("migrate_disks", disk.as_str());
        }
        params.extend(&self.more);
        params
    }
}

impl Connection {
    /// Migrates a domain and returns when it has moved. `destination` is libvirt's URI as the
    /// source sees it, for example `qemu+tls://hv2/system`.
    ///
    /// A migration takes its time: use [`Connection::with_call_timeout`]. When the deadline passes
    /// or the future is dropped, the migration goes on; [`Connection::abort_job`] ends it.
    pub async fn migrate_to_uri(
        &self,
        domain: &Domain,
        destination: &str,
        flags: MigrateFlags,
        params: &MigrateParams,
    ) -> Result<(), Error> {
        let flags = flags | MigrateFlags::PEER2PEER;
        let arguments = Writer::new()
            .domain(domain)
            .optional_string(Some(destination));
        // The cookie is for libvirt's own use.
        let arguments = params.typed().write(arguments).bytes(&[]).u32(flags.bits());
        self.client
            .call(DOMAIN_MIGRATE_PERFORM3_PARAMS, arguments, |_| Ok(()))
            .await
    }

    /// Sets how fast a domain migrates, now and later, in MiB per second.
    pub async fn migrate_set_max_speed(
        &self,
        domain: &Domain,
        mib_per_second: u64,
    ) -> Result<(), Error> {
        let arguments = Writer::new().domain(domain).u64(mib_per_second).u32(0);
        self.client
            .call(DOMAIN_MIGRATE_SET_MAX_SPEED, arguments, |_| Ok(()))
            .await
    }

    /// Sets for how long a domain may stand still at the end of its migration, in milliseconds.
    pub async fn migrate_set_max_downtime(
        &self,
        domain: &Domain,
        milliseconds: u64,
    ) -> Result<(), Error> {
        let arguments = Writer::new().domain(domain).u64(milliseconds).u32(0);
        self.client
            .call(DOMAIN_MIGRATE_SET_MAX_DOWNTIME, arguments, |_| Ok(()))
            .await
    }

    /// Switches a migration that was started with `POSTCOPY`: the guest runs on the destination at
    /// once and fetches its memory from here.
    pub async fn migrate_start_post_copy(&self, domain: &Domain) -> Result<(), Error> {
        self.act(DOMAIN_MIGRATE_START_POST_COPY, domain, Some(0))
            .await
    }
}
