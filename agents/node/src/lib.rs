//! The node agent: tells the fleet what runs on its host, follows migrations, reacts to failing
//! instances, and keeps the host's units, updates, shutdowns and certificates in order.
//!
//! One process, a handful of tasks joined by watch channels (`context`). Each task is alone
//! responsible for one thing and for saying what is wrong with it; `report` is the only writer of
//! the Hypervisor's status.
//!
//! | task | reads | writes |
//! |---|---|---|
//! | `virt` | libvirt | inventory, events, condition LibVirtConnection |
//! | `report` | what the other tasks know | the Hypervisor's status |
//! | `lease` | libvirt's answer | the heartbeat Lease |
//! | `migrations` | events, job statistics | Migrations |
//! | `ha` | events | restarts, Evictions |
//! | `host` | systemd, logind, hostnamed | conditions, operating system, updates |
//! | `tls`, `ceph` | this node's Secrets | the PKI folder, libvirt's secrets |
//! | `scrape` | libvirt's bulk statistics | /metrics |

pub mod agent;
pub mod ceph;
pub mod config;
pub mod context;
pub mod evictions;
pub mod exporter;
pub mod facts;
pub mod ha;
pub mod host;
pub mod inventory;
pub mod lease;
pub mod metrics;
pub mod migrations;
pub mod report;
pub mod scrape;
pub mod secrets;
pub mod status;
pub mod tls;
pub mod virt;
