//! The operator is killed after each of its changes to Nova and Placement, before it hears that the
//! change was made; the next one carries on from what is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use cobalt_api::hypervisor::Phase;
use cobalt_api::names::labels;
use serde_json::json;

use crate::cloud::{TEST_AGGREGATE, ZONE};
use crate::door::{Call, Doors, Fate};
use crate::support::{Operator, Site, kill, unique, until};

/// Kills the operator at one of its changes.
#[derive(Clone, Default)]
struct Trap {
    /// Of the operator that is running; 0: none.
    pid: Arc<AtomicU32>,
    /// Changes until then; 0 or less: never.
    left: Arc<AtomicI64>,
}

impl Trap {
    fn in_doors(doors: &Doors) -> Self {
        let trap = Self::default();
        let (pid, left) = (Arc::clone(&trap.pid), Arc::clone(&trap.left));
        doors.rule(move |call| {
            if !call.writes() || left.fetch_sub(1, Ordering::SeqCst) != 1 {
                return Fate::Through;
            }
            println!("it dies at {} {} {}", call.method, call.path, call.body);
            let pid = Arc::clone(&pid);
            Fate::DoneThen(Box::new(move || match pid.swap(0, Ordering::SeqCst) {
                0 => {}
                pid => kill(pid, "KILL"),
            }))
        });
        trap
    }

    fn arm(&self, operator: &Operator, nth: i64) {
        self.pid.store(operator.pid(), Ordering::SeqCst);
        self.left.store(nth, Ordering::SeqCst);
    }
}

struct Run {
    // It shows its log, which is a file of the site.
    operator: Operator,
    site: Site,
    doors: Doors,
    trap: Trap,
}

impl Run {
    async fn new(name: &str) -> Self {
        let site = Site::new(name).await;
        let doors = Doors::before(site.cloud).await;
        let trap = Trap::in_doors(&doors);
        let operator = site.operator_with(&[], &doors.environment());
        Self {
            site,
            doors,
            trap,
            operator,
        }
    }

    /// Waits for a phase. An operator that dies is followed by one that dies at the nth change, too.
    /// Returns how many have died.
    async fn phase(&mut self, host: &str, phase: Phase, nth: i64) -> usize {
        let mut died = 0;
        loop {
            tokio::select! {
                _ = self.site.phase(host, phase) => return died,
                _ = self.operator.ended() => {}
            }
            died += 1;
            assert!(died < 50, "it has no end: {:#?}", self.doors.changes());
            self.operator = self.site.operator_with(&[], &self.doors.environment());
            self.trap.arm(&self.operator, nth);
        }
    }

    /// A host that is at work already, for others to migrate to.
    async fn peer(&mut self) {
        let peer = unique("peer");
        self.site.cloud.add_host(&peer).await;
        let node = self.site.node(&peer, labels::LIFECYCLE_SKIP_TESTS);
        self.site.join(&node).await;
        self.site.phase(&peer, Phase::Active).await;
        self.doors.forget();
    }

    /// A life of a host, with operators that die at their nth change. Returns how many died.
    async fn life(&mut self, nth: i64) -> usize {
        let host = unique("crash");
        let cloud = self.site.cloud;
        self.trap.arm(&self.operator, nth);
        self.site.host(&host).await;
        let mut died = self.phase(&host, Phase::Active, nth).await;
        audit(&host, &self.doors.changes());
        // Nova takes a moment from "deleted" to its end.
        until("no test server is left", || async {
            let left = cloud.test_servers(&format!("ohooc--{host}")).await;
            left.is_empty().then_some(())
        })
        .await;
        assert_eq!(cloud.aggregates(&host).await, [ZONE]);
        assert_eq!(cloud.traits(&host).await, ["CUSTOM_COBALT_TEST"]);

        self.doors.forget();
        self.site.hold_up_eviction(&host).await;
        let leave = json!({ "spec": { "maintenance": "termination" } });
        self.site.patch(&host, leave).await;
        died += self.phase(&host, Phase::Evicting, nth).await;
        cloud.stop_host(&host).await;
        assert!(cloud.service(&host).await.is_some(), "it is not empty yet");
        self.site.let_evict(&host).await;
        died += self.phase(&host, Phase::Decommissioned, nth).await;
        assert!(cloud.has_nothing_of(&host).await);
        let enabled = self.doors.changes().iter().any(Call::enables);
        assert!(!enabled, "{:#?}", self.doors.changes());
        died
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Whoever has this number later is not ours to kill.
        self.trap.pid.store(0, Ordering::SeqCst);
    }
}

/// What Nova and Placement did for one host in its onboarding, in order: one test server, and the
/// scheduler let to the host only while it is kept for the tests, or when all is done.
fn audit(host: &str, changes: &[Call]) {
    let (mut created, mut deleted, mut traits) = (0, 0, false);
    let mut aggregates: Vec<i64> = Vec::new();
    let mut kept: Option<i64> = None;
    for call in changes {
        let number = || -> i64 {
            let mut parts = call.path.split("/os-aggregates/");
            let rest = parts.nth(1).unwrap();
            rest.split('/').next().unwrap().parse().unwrap()
        };
        if call.creates_server() {
            created += 1;
        } else if call.deletes_server() {
            deleted += 1;
        } else if call.is("PUT", "/traits") {
            traits = true;
        } else if call.body.pointer("/add_host/host") == Some(&json!(host)) {
            aggregates.push(number());
        } else if call.body.pointer("/remove_host/host") == Some(&json!(host)) {
            // The only one that a new host ever leaves.
            kept = Some(number());
            aggregates.retain(|one| Some(*one) != kept);
        }
        assert!(created - deleted <= 1, "two at once: {changes:#?}");
    }
    let kept = kept.unwrap_or_else(|| panic!("never out of {TEST_AGGREGATE}: {changes:#?}"));
    assert_eq!(created, 1, "{changes:#?}");
    assert!(traits, "{changes:#?}");
    // Again, now that it is known which one keeps the host for the tests.
    let (mut is_kept, mut done) = (false, false);
    for call in changes {
        if call.body.get("add_host").is_some() && call.path.contains(&aggregate(kept)) {
            is_kept = true;
        } else if call.body.get("remove_host").is_some() {
            is_kept = false;
            done = true;
        } else if call.enables() {
            assert!(is_kept || done, "open to all: {changes:#?}");
        } else if call.is("PUT", "/os-services/") {
            assert!(!done, "disabled at the end: {changes:#?}");
        }
    }
    assert_eq!(aggregates.len(), 1, "{changes:#?}");
    let last = changes.last().unwrap();
    assert!(
        last.enables(),
        "the end is to let the scheduler in: {changes:#?}"
    );
}

fn aggregate(id: i64) -> String {
    format!("/os-aggregates/{id}/")
}

async fn dies_at_each(nth: i64) -> usize {
    let mut run = Run::new("crash").await;
    run.peer().await;
    let died = run.life(nth).await;
    println!("killed {died} times");
    died
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_every_change_it_carries_on() {
    let died = dies_at_each(1).await;
    // Disabled, two aggregates, enabled, made, moved, moved back, deleted, disabled, traits, out of
    // the aggregate, enabled; disabled, removed.
    assert!(died >= 14, "only {died}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_every_second_or_third_change_it_carries_on() {
    let (second, third) = futures::join!(dies_at_each(2), dies_at_each(3));
    assert!(second >= 6 && third >= 4, "only {second} and {third}");
}
