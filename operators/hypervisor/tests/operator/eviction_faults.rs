//! Hosts are emptied while something is wrong: no room, guests that fail, hosts that die, Nova that is
//! away, an operator that is killed. Whatever can leave leaves, once; the rest is said in words.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use cobalt_api::conditions::{self, EvictionCondition, Reason};
use cobalt_api::eviction::{
    EvictionInstance, EvictionSpec, EvictionStatus, InstanceState as State, Outcome, Strategy,
    Verdict,
};
use cobalt_api::hypervisor::Phase;
use cobalt_api::migration;
use cobalt_openstack::compute::{Migration, MigrationStatus};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::door::{Call, Fate};
use crate::evictions::{Drain, agent_said, reasons, row};
use crate::support::{PATIENCE, kill, unique, until};

fn waits_for(status: &EvictionStatus, reason: &str) -> bool {
    let wait = status.waiting_for.as_ref();
    wait.is_some_and(|wait| wait.reason == reason)
}

/// What is said of the whole.
fn words(status: &EvictionStatus) -> String {
    let said = conditions::find(&status.conditions, EvictionCondition::Evicting);
    said.map(|said| said.message.clone()).unwrap_or_default()
}

/// On its way, as far as Nova knows where to.
fn on_its_way(row: &EvictionInstance) -> bool {
    row.state == State::Moving && row.migration_id.is_some() && row.to.is_some()
}

fn all_on_their_way(count: usize) -> impl Fn(&EvictionStatus) -> bool {
    move |status| {
        status
            .instances
            .iter()
            .filter(|row| on_its_way(row))
            .count()
            == count
    }
}

/// A call that begins a live migration.
fn moves(call: &Call) -> bool {
    call.body.get("os-migrateLive").is_some()
}

/// Nova moved each server once, and never twice at the same time.
fn assert_moved_once(migrations: &[Migration], servers: &[String]) {
    for server in servers {
        let own: Vec<&Migration> = migrations
            .iter()
            .filter(|one| one.server == *server)
            .collect();
        let completed = own.iter().filter(|one| one.status.is_success()).count();
        assert_eq!((completed, own.len()), (1, 1), "{own:#?}");
    }
}

/// More than the hosts have.
const BIG: u64 = 300_000;

/// One server too big for all other hosts, and two small ones.
async fn with_little_room(name: &str, patience: &str) -> Drain {
    let drain = Drain::new(name, 2, &["--eviction-patience", patience]).await;
    let cloud = drain.site.cloud;
    let flavor = unique("big");
    cloud.add_flavor(&flavor, BIG).await;
    // Hosts of other tests do not count.
    let own = format!("trait:{}", drain.own_trait());
    cloud.set_extra_spec(&flavor, &own, "required").await;
    cloud.give_memory(&drain.source, 3 * BIG).await;
    let zone = Some(drain.zone.as_str());
    cloud
        .boot_as("big", &drain.source, zone, &flavor, &[])
        .await;
    drain.boot_many(2).await;
    drain.begin().await;
    drain
}

#[tokio::test]
async fn what_has_no_room_is_told_and_the_others_leave() {
    let drain = with_little_room("full", "3s").await;
    let status = drain.ended(Outcome::PartiallyFailed).await;
    let big = row(&status, "big");
    assert_eq!((big.state, big.attempt), (State::Failed, None), "{big:#?}");
    let preflight = big.preflight.as_ref().unwrap();
    assert_eq!(
        (preflight.verdict, preflight.hosts),
        (Verdict::Blocked, Some(0))
    );
    assert_eq!(reasons(big)[0], "NoCapacity");
    assert!(
        big.error.as_ref().unwrap().contains("300000 MiB"),
        "{big:#?}"
    );
    for name in ["vm-00", "vm-01"] {
        assert_eq!(row(&status, name).state, State::Moved);
    }
    assert_eq!(status.outstanding_ram_mb, Some(300_000));
    assert_eq!(status.outstanding_instances, std::slice::from_ref(&big.id));
    assert!(
        !drain.moves().contains_key(&big.id),
        "Nova was not bothered"
    );
}

#[tokio::test]
async fn what_had_no_room_leaves_when_there_is_some() {
    let drain = with_little_room("room", "10m").await;
    let waiting = drain
        .eviction("the big one alone is waited for", |status| {
            waits_for(status, "Blocked")
        })
        .await;
    let status = waiting.status.unwrap();
    assert_eq!(row(&status, "big").state, State::Blocked);
    assert_eq!(status.counts.unwrap().moved, 2, "{status:#?}");
    drain
        .site
        .cloud
        .give_memory(&drain.targets[0], 3 * BIG)
        .await;
    let status = drain.ended(Outcome::Succeeded).await;
    let big = row(&status, "big");
    assert_eq!(big.to.as_ref(), Some(&drain.targets[0]), "{big:#?}");
    assert!(drain.is_empty().await);
}

#[tokio::test]
async fn w5_one_bad_server_of_twenty_does_not_hold_up_the_others() {
    let arguments = [
        "--eviction-attempts",
        "2",
        "--eviction-per-source",
        "8",
        "--eviction-per-target",
        "8",
    ];
    let drain = Drain::new("twenty", 3, &arguments).await;
    let ids = drain.boot_many(20).await;
    let bad = &ids[7];
    drain.fails(bad).await;
    // The agent sees that its guest runs on.
    drain.fake_guests(&ids).await;
    drain.begin().await;
    let status = drain.ended(Outcome::PartiallyFailed).await;
    let counts = status.counts.unwrap();
    assert_eq!((counts.moved, counts.failed), (19, 1), "{status:#?}");
    let row = row(&status, "vm-07");
    assert_eq!((row.state, row.attempt), (State::Failed, Some(2)));
    // The request is what its owner can ask Nova about.
    let request = row.request_id.as_ref().unwrap();
    assert!(row.error.as_ref().unwrap().contains(request), "{row:#?}");
    // It was set right before it was tried again, and at the end.
    let repairs = drain.doors.changes();
    let repairs = repairs.iter().filter(|call| {
        call.names(bad) && call.body.pointer("/os-resetState/state") == Some(&json!("active"))
    });
    assert_eq!(repairs.count(), 2);
    let now = drain.whereabouts().await;
    let stays = (drain.source.clone(), "ACTIVE".to_owned());
    assert_eq!(now["vm-07"], stays);
    assert_eq!(drain.moves()[bad], 2);
    assert_eq!(drain.moves().values().sum::<usize>(), 21);
}

#[tokio::test]
async fn a_server_in_error_that_nobody_sees_running_is_left_alone() {
    let drain = Drain::new("unseen", 2, &["--eviction-patience", "3s"]).await;
    let bad = drain.boot("bad").await;
    let good = drain.boot("good").await;
    drain.fails(&bad).await;
    // Its agent died after it had seen both of them run.
    let guest = |id: &String| json!({ "id": id, "name": id, "active": true });
    let guests = [&bad, &good].map(guest);
    agent_said(&drain.site.client, &drain.source, &guests).await;
    drain.begin().await;
    let status = drain.ended(Outcome::PartiallyFailed).await;
    assert_eq!(row(&status, "good").state, State::Moved);
    let row = row(&status, "bad");
    assert_eq!((row.state, row.attempt), (State::Failed, Some(1)));
    assert_eq!(reasons(row)[0], "InError");
    let error = row.error.as_ref().unwrap();
    assert!(error.contains("reset its state"), "{error}");
    let touched = drain.doors.changes();
    let touched = touched
        .iter()
        .filter(|call| call.names(&bad) && !moves(call));
    assert_eq!(touched.count(), 0);
    assert_eq!(drain.whereabouts().await["bad"].1, "ERROR");
}

/// Placement has room, and the scheduler takes none of it: the zone of the server ends here.
#[tokio::test]
async fn w5_what_the_scheduler_says_later_is_told() {
    let drain = Drain::new("nowhere", 0, &["--eviction-attempts", "2"]).await;
    let id = drain.boot("one").await;
    drain.begin().await;
    let status = drain.ended(Outcome::Failed).await;
    let row = row(&status, "one");
    assert_eq!((row.state, row.attempt), (State::Failed, Some(2)));
    let client = drain.site.cloud.client();
    let request = row.request_id.as_ref().unwrap();
    let action = client.compute().action(&id, request).await.unwrap();
    let said = action.failure().unwrap_or_else(|| panic!("{action:#?}"));
    assert!(said.contains("No valid host"), "{said}");
    assert!(row.error.as_ref().unwrap().contains(said), "{row:#?}");
}

#[tokio::test]
async fn a_target_that_failed_is_avoided() {
    let drain = Drain::new("avoid", 2, &[]).await;
    let cloud = drain.site.cloud;
    let (bad, good) = (&drain.targets[0], &drain.targets[1]);
    cloud.knob("fail_live_migration_to", bad, true).await;
    // The scheduler likes the host with more free memory.
    let flavor = unique("filler");
    cloud.add_flavor(&flavor, 16_384).await;
    cloud
        .boot_as("filler", good, Some(&drain.zone), &flavor, &[])
        .await;
    let ids = drain.boot_many(2).await;
    drain.fake_guests(&ids).await;
    drain.begin().await;
    let status = drain.ended(Outcome::Succeeded).await;
    for row in &status.instances {
        assert_eq!(row.to.as_ref(), Some(good), "{row:#?}");
        assert_eq!(row.error, None, "{row:#?}");
        // The scheduler may have found the good one at once.
        let tried_there = row.avoid == std::slice::from_ref(bad);
        assert_eq!(row.attempt, Some(1 + i32::from(tried_there)), "{row:#?}");
    }
    let tried_there = |row: &&EvictionInstance| row.avoid.contains(bad);
    assert!(status.instances.iter().any(|row| tried_there(&row)));
    assert_eq!(status.instances.len(), 2);
}

#[tokio::test]
async fn a_target_that_dies_in_the_middle_is_replaced() {
    let drain = Drain::new("target-dies", 2, &[]).await;
    let cloud = drain.site.cloud;
    cloud.knob("hang_live_migration", &drain.source, true).await;
    let ids = drain.boot_many(4).await;
    drain.fake_guests(&ids).await;
    drain.begin().await;
    let moving = drain
        .eviction("all are on their way", all_on_their_way(4))
        .await;
    let moving = moving.status.unwrap();
    let dead = moving.instances[0].to.clone().unwrap();
    let on_it = |row: &&EvictionInstance| row.to.as_ref() == Some(&dead);
    let struck = moving.instances.iter().filter(on_it).count();
    cloud.kill_host(&dead).await;
    // What libvirt says at the source.
    cloud.knob("fail_live_migration_to", &dead, true).await;
    cloud
        .knob("hang_live_migration", &drain.source, false)
        .await;
    let status = drain.ended(Outcome::Succeeded).await;
    let again = |row: &&EvictionInstance| row.attempt == Some(2) && row.avoid == [dead.clone()];
    assert_eq!(status.instances.iter().filter(again).count(), struck);
    for row in &status.instances {
        assert_ne!(row.to.as_ref(), Some(&dead), "{row:#?}");
    }
    assert_eq!(status.counts.unwrap().moved, 4);
    assert!(drain.is_empty().await);
}

#[tokio::test]
async fn a_source_that_dies_in_the_middle_is_given_up() {
    let arguments = [
        "--eviction-host-patience",
        "3s",
        "--eviction-per-source",
        "2",
    ];
    let drain = Drain::new("source-dies", 2, &arguments).await;
    let cloud = drain.site.cloud;
    cloud.knob("hang_live_migration", &drain.source, true).await;
    drain.boot_many(4).await;
    drain.begin().await;
    drain
        .eviction("two are on their way", all_on_their_way(2))
        .await;
    cloud.kill_host(&drain.source).await;
    drain
        .eviction("it waits for the host", |status| {
            waits_for(status, "HostDown")
        })
        .await;
    let status = drain.ended(Outcome::Failed).await;
    assert!(words(&status).contains("the host is down"), "{status:#?}");
    assert_eq!(status.counts.unwrap().failed, 4);
    for row in &status.instances {
        assert!(row.error.as_ref().unwrap().contains("fence it"), "{row:#?}");
    }
    let moves = drain.moves();
    assert_eq!(moves.len(), 2);
    assert!(moves.values().all(|times| *times == 1), "{moves:?}");
}

/// Numbers that look random, and are the same for the same seed.
struct Random(u64);

impl Random {
    /// The seed is told, and can be given: COBALT_TEST_SEED.
    fn new(salt: u64) -> Self {
        let given = std::env::var("COBALT_TEST_SEED").ok();
        let seed = given.map_or_else(
            || u64::from(std::process::id()),
            |seed| seed.parse().unwrap(),
        );
        println!("COBALT_TEST_SEED={seed}");
        Self(seed.wrapping_mul(31).wrapping_add(salt))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// Kills the operator at a call, before or after Nova has heard it.
#[derive(Clone, Default)]
struct Trap {
    /// Of the operator that is running; 0: none.
    pid: Arc<AtomicU32>,
    /// Calls until then; 0 or less: never.
    left: Arc<AtomicI64>,
    /// Nova does what was asked.
    after: Arc<AtomicBool>,
}

impl Trap {
    fn in_doors(drain: &Drain) -> Self {
        let trap = Self::default();
        let own = trap.clone();
        drain.doors.rule(move |_| {
            if own.left.fetch_sub(1, Ordering::SeqCst) != 1 {
                return Fate::Through;
            }
            let strikes = own.clone();
            if own.after.load(Ordering::SeqCst) {
                return Fate::DoneThen(Box::new(move || strikes.strike()));
            }
            strikes.strike();
            Fate::Never
        });
        trap
    }

    fn strike(&self) {
        match self.pid.swap(0, Ordering::SeqCst) {
            0 => {}
            pid => kill(pid, "KILL"),
        }
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        // Whoever has this number later is not ours to kill.
        self.left.store(0, Ordering::SeqCst);
    }
}

/// Empties a host again and again, while the operator is killed at random points, so many times in
/// all.
async fn killed_at_random(salt: u64, kills: usize) {
    let mut random = Random::new(salt);
    let mut drain = Drain::new("killed", 2, &["--eviction-per-source", "3"]).await;
    let trap = Trap::in_doors(&drain);
    let mut killed = 0;
    while killed < kills {
        let servers = drain.boot_many(6).await;
        drain.begin().await;
        loop {
            // A third dies at a moment, the others at a call.
            let operator = drain.operator.as_mut().unwrap();
            let moment = if killed >= kills {
                PATIENCE
            } else {
                trap.pid.store(operator.pid(), Ordering::SeqCst);
                if random.below(3) == 0 {
                    Duration::from_millis(200 + random.below(4000))
                } else {
                    trap.after.store(random.below(2) == 0, Ordering::SeqCst);
                    let nth = 1 + i64::try_from(random.below(24)).unwrap();
                    trap.left.store(nth, Ordering::SeqCst);
                    PATIENCE
                }
            };
            let evictions = drain.site.evictions();
            let over = await_condition(
                evictions,
                &drain.source,
                |object: Option<&cobalt_api::eviction::Eviction>| {
                    let status = object.and_then(|object| object.status.as_ref());
                    status.is_some_and(|status| status.outcome.is_some())
                },
            );
            tokio::select! {
                // Nova now and then takes two minutes for what it was asked by one who died.
                ended = tokio::time::timeout(PATIENCE * 3, over) => {
                    let status = ended.unwrap().unwrap().unwrap().status.unwrap();
                    assert_eq!(status.outcome, Some(Outcome::Succeeded), "{status:#?}");
                    break;
                }
                () = operator.died() => {}
                () = tokio::time::sleep(moment), if killed < kills => trap.strike(),
            }
            let operator = drain.operator.as_mut().unwrap();
            operator.ended().await;
            trap.left.store(0, Ordering::SeqCst);
            killed += 1;
            drain.start();
        }
        trap.left.store(0, Ordering::SeqCst);
        let operator = drain.operator.as_mut().unwrap();
        if trap.pid.swap(0, Ordering::SeqCst) != operator.pid() && killed < kills {
            // It was struck when all was over.
            operator.ended().await;
            killed += 1;
            drain.start();
        }
        assert!(drain.is_empty().await);
        assert_moved_once(&drain.migrations().await, &servers);
        // The host is taken back for the next time.
        let patch = json!({ "spec": { "maintenance": "" } });
        drain.site.patch(&drain.source, patch).await;
        drain.site.phase(&drain.source, Phase::Active).await;
    }
    println!("killed {killed} times");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_points_it_moves_each_server_once_a() {
    killed_at_random(1, 17).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_points_it_moves_each_server_once_b() {
    killed_at_random(2, 17).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_points_it_moves_each_server_once_c() {
    killed_at_random(3, 17).await;
}

#[tokio::test]
async fn while_nova_is_away_nothing_is_lost() {
    let drain = Drain::new("away", 2, &["--eviction-per-source", "2"]).await;
    let ids = drain.boot_many(5).await;
    // From the third move on, Nova is away; that one it has taken before.
    let away = Arc::new(AtomicBool::new(false));
    let (is_away, mut asked) = (Arc::clone(&away), 0);
    drain.doors.rule(move |call| {
        if is_away.load(Ordering::SeqCst) {
            return Fate::Answer(503, "", vec![]);
        }
        if moves(call) {
            asked += 1;
        }
        if asked < 3 {
            return Fate::Through;
        }
        asked = i32::MIN;
        is_away.store(true, Ordering::SeqCst);
        Fate::DoneThen(Box::new(|| {}))
    });
    drain.begin().await;
    drain
        .eviction("it waits for Nova", |status| waits_for(status, "Nova"))
        .await;
    let operator = drain.operator.as_ref().unwrap();
    let breaker = "cobalt_operator_openstack_breaker_open{service=\"compute\"}";
    until("Nova is left alone", || async {
        (operator.metric(breaker).await > 0.0).then_some(())
    })
    .await;
    away.store(false, Ordering::SeqCst);
    let status = drain.ended(Outcome::Succeeded).await;
    assert_eq!(status.counts.unwrap().moved, 5, "{status:#?}");
    assert_moved_once(&drain.migrations().await, &ids);
    for row in &status.instances {
        assert_eq!(row.attempt, Some(1), "{row:#?}");
    }
}

/// Each on its own: a deadline, a cancellation, a deletion, and an abort that Nova refuses.
#[tokio::test]
async fn what_is_stopped_is_aborted_or_awaited() {
    let drain = Drain::new("stopped", 2, &[]).await;
    let cloud = drain.site.cloud;
    let ids = drain.boot_many(4).await;
    for id in &ids {
        cloud.knob("hang_live_migration", id, true).await;
    }
    cloud.knob("refuse_abort", &ids[3], true).await;
    let only = |id: &String| EvictionSpec {
        instances: vec![id.clone()],
        ..EvictionSpec::default()
    };
    let late = drain
        .evict(EvictionSpec {
            deadline: Some("8s".to_owned()),
            ..only(&ids[0])
        })
        .await;
    let cancelled = drain.evict(only(&ids[1])).await;
    let deleted = drain.evict(only(&ids[2])).await;
    let stubborn = drain.evict(only(&ids[3])).await;
    for name in [&late, &cancelled, &deleted, &stubborn] {
        drain
            .eviction_named(name, "it is on its way", all_on_their_way(1))
            .await;
    }
    let api = drain.site.evictions();
    let refused = ids[3].clone();
    drain.doors.rule(move |call| {
        if call.method == "DELETE" && call.path.contains(&refused) {
            let text = r#"{"conflictingRequest": {"code": 409, "message": "not now"}}"#;
            return Fate::Answer(409, text, vec![]);
        }
        Fate::Through
    });
    let cancel = json!({ "spec": { "cancel": true } });
    for name in [&cancelled, &stubborn] {
        api.patch(name, &PatchParams::default(), &Patch::Merge(&cancel))
            .await
            .unwrap();
    }
    let before = api.get(&deleted).await.unwrap();
    assert!(!before.finalizers().is_empty());
    api.delete(&deleted, &DeleteParams::default())
        .await
        .unwrap();

    let status = drain.ended_named(&late, Outcome::TimedOut).await;
    let row = &status.instances[0];
    assert_eq!(row.state, State::Cancelled, "{row:#?}");
    assert!(row.error.as_ref().unwrap().contains("deadline"), "{row:#?}");
    assert!(words(&status).contains("the deadline passed"));
    let status = drain.ended_named(&cancelled, Outcome::Cancelled).await;
    assert_eq!(status.instances[0].state, State::Cancelled);
    let gone = await_condition(
        api.clone(),
        &deleted,
        |object: Option<&cobalt_api::eviction::Eviction>| object.is_none(),
    );
    tokio::time::timeout(PATIENCE, gone).await.unwrap().unwrap();

    // This one cannot be stopped, whether Nova says so or not: its end is awaited.
    drain
        .eviction_named(&stubborn, "the refusal is told", |status| {
            let error = status.instances[0].error.as_deref().unwrap_or_default();
            error.contains("it was to be aborted, and Nova says") && error.contains("not now (409")
        })
        .await;
    drain.doors.open();
    until("the abort is asked for again", || async {
        let changes = drain.doors.changes();
        let again = |call: &Call| call.is("DELETE", "/migrations/") && call.names(&ids[3]);
        changes.iter().any(again).then_some(())
    })
    .await;
    let status = api.get_status(&stubborn).await.unwrap().status.unwrap();
    assert_eq!(
        (status.outcome, status.instances[0].state),
        (None, State::Moving)
    );
    cloud.knob("hang_live_migration", &ids[3], false).await;
    let status = drain.ended_named(&stubborn, Outcome::Cancelled).await;
    assert_eq!(status.instances[0].state, State::Moved, "{status:#?}");

    let all = drain.migrations().await;
    for id in &ids[..3] {
        let mut own = all.iter().filter(|one| one.server == *id);
        assert!(own.all(|one| one.status.has_ended() && !one.status.is_success()));
    }
    let aborts = drain.doors.changes();
    for id in &ids[..3] {
        let aborted = |call: &Call| call.is("DELETE", "/migrations/") && call.names(id);
        assert!(aborts.iter().any(aborted), "{id}");
    }
    let service = cloud.service(&drain.source).await.unwrap();
    assert_eq!(service.status.as_str(), "enabled");
}

#[tokio::test]
async fn w1_a_host_that_nova_lost_is_never_taken_for_empty() {
    let drain = Drain::new("lost", 1, &[]).await;
    drain.boot("one").await;
    let refused = drain
        .evict(EvictionSpec {
            strategy: Some(Strategy::Evacuate),
            ..EvictionSpec::default()
        })
        .await;
    let status = drain.ended_named(&refused, Outcome::Failed).await;
    assert!(words(&status).contains("Evacuate is for a dead host"));
    assert!(words(&status).contains("use LiveMigrate"));
    assert!(drain.moves().is_empty());

    // Somebody deletes the service of a host that takes no part in this test but by name.
    let lost = drain.targets[0].clone();
    let service = drain.site.cloud.service(&lost).await.unwrap();
    drain.site.cloud.stop_host(&lost).await;
    let client = drain.site.cloud.client();
    client.compute().delete_service(&service.id).await.unwrap();
    drain.operator.as_ref().unwrap().rounds(2).await;
    let name = unique("eviction");
    let spec = EvictionSpec {
        hypervisor: lost.clone(),
        reason: "a test".to_owned(),
        ..EvictionSpec::default()
    };
    let eviction = cobalt_api::eviction::Eviction::new(&name, spec);
    let api = drain.site.evictions();
    api.create(&PostParams::default(), &eviction).await.unwrap();
    let status = drain.ended_named(&name, Outcome::Failed).await;
    assert!(words(&status).contains("Nova does not know the host any more"));

    // Nor by way of the host.
    let wish = json!({ "spec": { "maintenance": "manual", "maintenanceReason": "a test" } });
    drain.site.patch(&lost, wish).await;
    drain.operator.as_ref().unwrap().rounds(2).await;
    let host = drain.site.hypervisors().get(&lost).await.unwrap();
    let status = host.status.unwrap();
    assert_ne!(status.evicted, Some(true), "{status:#?}");
    let evicting = conditions::HypervisorCondition::Evicting;
    let reason = conditions::reason(&status.conditions, evicting);
    assert_eq!(reason, Some(Reason::Failed), "{status:#?}");
}

#[tokio::test]
async fn an_attempt_that_takes_too_long_is_aborted_and_tried_again() {
    let arguments = [
        "--eviction-instance-deadline",
        "20s",
        "--eviction-attempts",
        "2",
    ];
    let drain = Drain::new("slow", 3, &arguments).await;
    let slow = drain.boot("slow").await;
    let quick = drain.boot("quick").await;
    drain
        .site
        .cloud
        .knob("hang_live_migration", &slow, true)
        .await;
    drain.fake_guests(&[slow.clone(), quick]).await;
    drain.begin().await;
    let status = drain.ended(Outcome::PartiallyFailed).await;
    assert_eq!(row(&status, "quick").state, State::Moved);
    let row = row(&status, "slow");
    assert_eq!((row.state, row.attempt), (State::Failed, Some(2)));
    let error = row.error.as_ref().unwrap();
    assert!(error.contains("the attempt took too long"), "{error}");
    let all = drain.migrations().await;
    let own: Vec<&Migration> = all.iter().filter(|one| one.server == slow).collect();
    assert_eq!(own.len(), 2);
    assert!(own.iter().all(|one| one.status.has_ended()), "{own:#?}");
    assert_eq!(drain.whereabouts().await["slow"].1, "ACTIVE");
}

#[tokio::test]
async fn a_transfer_that_gets_no_nearer_is_brought_to_its_end() {
    let arguments = [
        "--eviction-stall",
        "2s",
        "--eviction-stalled",
        "force-complete",
    ];
    let drain = Drain::new("stalled", 2, &arguments).await;
    let id = drain.boot("busy").await;
    drain
        .site
        .cloud
        .knob("hang_live_migration", &id, true)
        .await;
    drain.begin().await;
    drain
        .eviction("it is on its way", all_on_their_way(1))
        .await;
    // A stand-in for the agent: the guest changes its memory as fast as it is sent.
    let api: Api<migration::Migration> = Api::default_namespaced(drain.site.client.clone());
    let object = migration::Migration::new(&id, migration::MigrationSpec::default());
    api.create(&PostParams::default(), &object).await.unwrap();
    let stats = json!({ "dataTotalBytes": 1000, "dataRemainingBytes": 400 });
    let end = json!({ "role": "Source", "node": drain.source, "stats": stats });
    let status = json!({ "status": {
        "instance": id, "started": jiff::Timestamp::now().to_string(), "ends": [end],
    } });
    api.patch_status(&id, &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
    drain
        .eviction("the progress is told", |status| {
            status.instances[0].progress == Some(60)
        })
        .await;
    let status = drain.ended(Outcome::Succeeded).await;
    assert_eq!(status.instances[0].attempt, Some(1), "{status:#?}");
    let forced = drain.doors.changes();
    let forced = forced
        .iter()
        .filter(|call| call.body.get("force_complete").is_some());
    assert_eq!(forced.count(), 1);
    assert_moved_once(&drain.migrations().await, &[id]);
}

/// nova-conductor dies with the requests for three servers: of one it has made a record and reserved
/// resources on a target, of two it has done nothing yet.
#[tokio::test]
async fn what_a_dying_conductor_left_half_done_is_said_and_set_right() {
    let arguments = ["--eviction-stuck-patience", "4s"];
    let drain = Drain::new("conductor", 2, &arguments).await;
    let cloud = drain.site.cloud;
    let ids = drain.boot_many(3).await;
    drain.fake_guests(&ids).await;
    let (late, early) = ids.split_first().unwrap();
    cloud.knob("lose_live_migration_late", late, true).await;
    for id in early {
        cloud.knob("lose_live_migration", id, true).await;
    }
    // And there is no other one yet.
    drain.doors.rule(|call| {
        if call.is("GET", "binary=nova-conductor") {
            let down = r#"{"services": [{"id": "x", "binary": "nova-conductor", "host": "control",
                "status": "enabled", "state": "down"}]}"#;
            return Fate::Answer(200, down, vec![("content-type", "application/json")]);
        }
        Fate::Through
    });
    drain.begin().await;
    drain
        .eviction("it is said that nothing happens", |status| {
            waits_for(status, "NovaStuck")
        })
        .await;
    drain
        .eviction("it waits for a nova-conductor", |status| {
            waits_for(status, "NovaConductor")
        })
        .await;
    let moved = drain.moves();
    assert!(moved.values().all(|times| *times == 1), "{moved:?}");
    for id in &ids {
        cloud.knob("lose_live_migration_late", id, false).await;
        cloud.knob("lose_live_migration", id, false).await;
    }
    drain.doors.open();
    let status = drain.ended(Outcome::Succeeded).await;
    for row in &status.instances {
        assert_eq!(
            (row.state, row.attempt),
            (State::Moved, Some(2)),
            "{row:#?}"
        );
    }
    assert!(drain.is_empty().await);
    let events: Api<Event> = Api::default_namespaced(drain.site.client.clone());
    for reason in ["NovaStuck", "NovaConductorDown"] {
        until(reason, || async {
            let all = events.list(&ListParams::default()).await.unwrap();
            let mut own = all.into_iter().filter(|event| {
                let about = event.regarding.as_ref().unwrap();
                about.name.as_deref() == Some(drain.source.as_str())
            });
            own.any(|event| event.reason.as_deref() == Some(reason))
                .then_some(())
        })
        .await;
    }
    // Nothing is held for the migration that was lost.
    let client = cloud.client();
    let placement = client.placement();
    let provider = placement.provider_named(&drain.source).await.unwrap();
    let used = placement
        .provider_allocations(&provider.unwrap().uuid)
        .await
        .unwrap();
    assert!(used.allocations.is_empty(), "{used:#?}");
    for id in &ids {
        let held = placement.allocations(id).await.unwrap();
        assert_eq!(held.allocations.len(), 1, "{held:#?}");
    }
}

/// Nobody sees the guest, so that its state is not reset; the drain ends all the same when it is
/// called off, and the host comes back.
#[tokio::test]
async fn a_drain_that_a_dying_conductor_left_half_done_can_be_called_off() {
    let arguments = ["--eviction-stuck-patience", "4s"];
    let drain = Drain::new("called-off", 1, &arguments).await;
    let cloud = drain.site.cloud;
    let id = drain.boot("one").await;
    cloud.knob("lose_live_migration", &id, true).await;
    drain.begin().await;
    drain
        .eviction("it is on its way", |status| {
            let mut rows = status.instances.iter();
            rows.any(|row| row.state == State::Moving)
        })
        .await;
    drain
        .site
        .patch(&drain.source, json!({ "spec": { "maintenance": "" } }))
        .await;
    drain.site.phase(&drain.source, Phase::Active).await;
    let left = drain.site.evictions().get_opt(&drain.source).await;
    assert!(left.unwrap().is_none());
    assert_eq!(drain.moves()[&id], 1);
    assert_eq!(drain.whereabouts().await["one"].1, "MIGRATING");
    let reset = json!({ "os-resetState": { "state": "active" } });
    cloud.server_action(&id, reset).await;
}

/// How many were under way at the same time, at most. Nova's times are full seconds: one that began
/// in the second in which another ended was not there with it.
pub fn at_once<'a>(migrations: impl IntoIterator<Item = &'a Migration>) -> i32 {
    let mut changes = BTreeMap::new();
    for one in migrations {
        assert_eq!(one.status, MigrationStatus::Completed, "{one:#?}");
        // Ends come before beginnings.
        *changes.entry((one.updated_at.unwrap(), 0)).or_insert(0) -= 1;
        *changes.entry((one.created_at.unwrap(), 1)).or_insert(0) += 1;
    }
    let running = changes.values().scan(0, |sum, change| {
        *sum += change;
        Some(*sum)
    });
    running.max().unwrap_or(0)
}
