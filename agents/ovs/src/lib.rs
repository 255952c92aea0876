//! The OVS agent: tells the fleet how Open vSwitch and OVN are doing on its node, and what to do
//! about what is wrong.
//!
//! One process, a handful of tasks joined by watch channels. Each task of `observe` keeps one
//! connection up and says what it sees; `decide` is pure and turns all of it into a status;
//! `report` is the only writer of the OVSNode.
//!
//! | task | reads | writes |
//! |---|---|---|
//! | `observe::switch` | OVSDB | bridges, ports, interfaces |
//! | `observe::daemon` (three) | unixctl of ovs-vswitchd, ovsdb-server, ovn-controller | whether they answer |
//! | `observe::flows` | OpenFlow of each bridge | flows by table, cookie and output |
//! | `observe::southbound` | OVN's southbound database | chassis, bindings, flows that nobody wants |
//! | `settings` | a folder of settings | thresholds |
//! | `report` | all of the above | the OVSNode, Events |
//! | `scrape` | all of the above, counters of interfaces | /metrics |
//! | `diagnostics::server` | OVSDB, unixctl, packets; the API server about who asks | answers over HTTPS |
//! | `diagnostics::capture` | ports and mirrors of captures | takes away those that nobody needs |
//!
//! Nothing here changes the switch, but for captures: they add a mirror, and take it away.

pub mod agent;
pub mod config;
pub mod decide;
pub mod diagnostics;
pub mod metrics;
pub mod observe;
pub mod report;
pub mod scrape;
pub mod settings;
