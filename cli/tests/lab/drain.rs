//! `cobalt drain` and `cobalt undrain` against a real API server, as a person who may do no more
//! than docs/drain.md asks for. The operator is played by the tests: `FakeEngine` writes what it
//! would write.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use cobalt_api::conditions::{
    ConditionType, EvictionCondition, HypervisorCondition as Type, Reason, Status, Wanted,
};
use cobalt_api::eviction::{Eviction, Outcome};
use cobalt_api::hypervisor::{Hypervisor, Maintenance};
use cobalt_api::names::{FieldManager, finalizers, labels};
use cobalt_lab::LabConfig;
use cobalt_lab::control::Fault;
use cobalt_lab::testing::{api_server, install_definitions};
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::sync::OnceCell;

use crate::cloud::until;
use crate::lab;
use crate::session::{Ended, Session, soon};

/// Somebody with exactly the rights that docs/drain.md lists.
const DRAINER: &str = "drainer";
/// Somebody who may make Evictions and not touch a Hypervisor.
const HALF: &str = "half-a-drainer";

/// A cluster with our kinds, and the two people.
struct World {
    client: Client,
    /// Kubeconfigs, by person.
    people: tempfile::TempDir,
}

/// The world of an API server that the tests share.
async fn world() -> World {
    static READY: OnceCell<PathBuf> = OnceCell::const_new();
    let kubeconfig = READY
        .get_or_init(|| async {
            let server = api_server().await.unwrap();
            let client = server.client().await.unwrap();
            populate(&client).await;
            server.kubeconfig
        })
        .await;
    World::of(kubeconfig).await
}

/// Our kinds, and what people may do.
async fn populate(client: &Client) {
    install_definitions(client, &cobalt_api::crds::all())
        .await
        .unwrap();
    let all = ["get", "list", "watch", "create", "patch", "delete"];
    person(client, DRAINER, &["get", "list", "watch", "patch"], &all).await;
    person(client, HALF, &["get"], &all).await;
}

async fn person(client: &Client, name: &str, hypervisors: &[&str], evictions: &[&str]) {
    let name = &format!("cobalt-test-{name}");
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": name },
        "rules": [
            { "apiGroups": ["kvm.cloud.sap"], "resources": ["hypervisors"], "verbs": hypervisors },
            { "apiGroups": ["kvm.cloud.sap"], "resources": ["evictions"], "verbs": evictions },
            // An owner that blocks its deletion is more than a reference.
            { "apiGroups": ["kvm.cloud.sap"], "resources": ["hypervisors/finalizers"],
              "verbs": ["update"] },
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name }],
    });
    let apply = PatchParams::apply("cobalt-tests").force();
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    roles
        .patch(name, &apply, &Patch::Apply(&role))
        .await
        .unwrap();
    bindings
        .patch(name, &apply, &Patch::Apply(&binding))
        .await
        .unwrap();
}

impl World {
    /// The world of this API server, whose people are known to it.
    async fn of(kubeconfig: &Path) -> Self {
        let people = tempfile::tempdir().unwrap();
        for person in [DRAINER, HALF] {
            let mut config = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
            for user in &mut config.auth_infos {
                user.auth_info.as_mut().unwrap().impersonate =
                    Some(format!("cobalt-test-{person}"));
            }
            // Its certificates may be paths beside the file.
            let text = serde_json::to_string(&config).unwrap();
            std::fs::write(people.path().join(person), text).unwrap();
        }
        let world = Self {
            client: cobalt_lab::cluster::client(kubeconfig).await.unwrap(),
            people,
        };
        // The API server learns of rights a little later.
        for person in [DRAINER, HALF] {
            let path = world.people.path().join(person);
            let client = cobalt_lab::cluster::client(&path).await.unwrap();
            until("the rights are known", || async {
                let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
                let review = serde_json::from_value(json!({ "spec": { "resourceAttributes": {
                    "group": "kvm.cloud.sap", "resource": "evictions", "verb": "create",
                }}}));
                let params = PostParams::default();
                let reviewed = reviews.create(&params, &review.unwrap()).await;
                let status = reviewed.ok()?.status?;
                status.allowed.then_some(())
            })
            .await;
        }
        world
    }

    fn hypervisors(&self) -> Api<Hypervisor> {
        Api::all(self.client.clone())
    }

    fn evictions(&self) -> Api<Eviction> {
        Api::all(self.client.clone())
    }

    async fn hypervisor(&self, name: &str) -> Hypervisor {
        self.hypervisors().get(name).await.unwrap()
    }

    /// A host that takes workload.
    async fn host(&self, prefix: &str) -> String {
        self.host_with(prefix, json!({}), "Active").await
    }

    async fn host_with(&self, prefix: &str, spec: Value, phase: &str) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{prefix}-{}-{number}", std::process::id());
        let object = serde_json::from_value(json!({
            "apiVersion": "kvm.cloud.sap/v1", "kind": "Hypervisor",
            "metadata": { "name": name, "labels": { labels::ZONE: "a", "else": "b" } },
            "spec": spec,
        }));
        let object: Hypervisor = object.unwrap();
        self.hypervisors()
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        let onboarded = condition(Type::Onboarding, Status::False, Reason::Succeeded, "");
        self.host_status(&name, json!({ "phase": phase, "conditions": [onboarded] }))
            .await;
        name
    }

    async fn host_status(&self, name: &str, status: Value) {
        let patch = json!({ "status": status });
        self.hypervisors()
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    async fn change_host(&self, name: &str, spec: Value) {
        let patch = json!({ "spec": spec });
        self.hypervisors()
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    async fn make_eviction(&self, name: &str, spec: Value) -> Eviction {
        let object = serde_json::from_value(json!({
            "apiVersion": "kvm.cloud.sap/v1", "kind": "Eviction",
            "metadata": { "name": name }, "spec": spec,
        }));
        self.evictions()
            .create(&PostParams::default(), &object.unwrap())
            .await
            .unwrap()
    }

    /// Starts the command as the person who drains.
    fn start(&self, arguments: &[&str]) -> Session {
        Session::start(&self.people.path().join(DRAINER), arguments)
    }

    /// Starts it on a terminal of this size.
    fn start_on_terminal(&self, columns: u16, rows: u16, arguments: &[&str]) -> Session {
        let person = self.people.path().join(DRAINER);
        Session::start_on_terminal(&person, columns, rows, arguments)
    }

    /// Runs it to its end.
    async fn run(&self, arguments: &[&str]) -> Ended {
        self.start(arguments).end().await
    }
}

fn condition<T: ConditionType>(
    condition: T,
    status: Status,
    reason: Reason,
    message: &str,
) -> Value {
    let wanted = Wanted {
        condition,
        status,
        reason,
        message: message.to_owned(),
        observed_generation: None,
    };
    serde_json::to_value(wanted.build(&[], Timestamp::now())).unwrap()
}

/// Stands in for the operator's engine: it writes the status that a test wants.
struct FakeEngine<'a> {
    world: &'a World,
    eviction: String,
}

impl<'a> FakeEngine<'a> {
    /// Waits until the drain of a host has begun.
    async fn of(world: &'a World, host: &str) -> Self {
        let manual = |host: Option<&Hypervisor>| {
            host.is_some_and(|host| host.spec.maintenance() == Maintenance::Manual)
        };
        let manual = await_condition(world.hypervisors(), host, manual);
        soon("the host is taken out of service", manual)
            .await
            .unwrap();
        Self {
            world,
            eviction: host.to_owned(),
        }
    }

    async fn writes(&self, status: Value) {
        let patch = json!({ "status": status });
        self.world
            .evictions()
            .patch_status(
                &self.eviction,
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await
            .unwrap();
    }

    async fn ends(&self, outcome: Outcome, instances: Value) {
        let reason = outcome.as_str().parse().unwrap();
        let evicting = EvictionCondition::Evicting;
        self.writes(json!({
            "outcome": outcome,
            "startedAt": "2026-01-01T00:00:00Z",
            "finishedAt": "2026-01-01T00:01:40Z",
            "waitingFor": null,
            "instances": instances,
            "conditions": [condition(evicting, Status::False, reason, "so says the engine")],
        }))
        .await;
    }
}

fn row(name: &str, state: &str) -> Value {
    json!({ "id": format!("id-{name}"), "name": name, "state": state, "from": "here" })
}

fn moving(name: &str, progress: i32) -> Value {
    let mut row = row(name, "Moving");
    row["to"] = json!("there");
    row["method"] = json!("Live");
    row["attempt"] = json!(1);
    row["progress"] = json!(progress);
    row
}

fn moved(name: &str) -> Value {
    let mut row = moving(name, 100);
    row["state"] = json!("Moved");
    row
}

fn blocked(name: &str) -> Value {
    let mut row = row(name, "Blocked");
    row["preflight"] = json!({ "verdict": "Blocked", "hosts": 0, "reasons": [
        { "reason": "NoCapacity", "message": "no host has room" },
    ]});
    row
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_is_begun_as_the_operator_would_and_told_line_by_line() {
    let world = world().await;
    let host = world.host("lines").await;
    let flags = ["--parallel", "8", "--timeout", "90m", "--reason", "a fan"];
    let arguments = [&["drain", &host, "--wait"][..], &flags].concat();
    let session = world.start(&arguments);
    let engine = FakeEngine::of(&world, &host).await;

    let eviction = world.evictions().get(&host).await.unwrap();
    assert_eq!(eviction.spec.hypervisor, host);
    assert_eq!(eviction.spec.reason, "a fan");
    assert_eq!(eviction.spec.parallelism, Some(8));
    assert_eq!(eviction.spec.deadline.as_deref(), Some("1h30m"));
    assert!(!eviction.spec.dry_run() && eviction.spec.instances.is_empty());
    assert_eq!(eviction.labels().len(), 1);
    assert_eq!(eviction.labels()[labels::ZONE], "a");
    let owner = &eviction.owner_references()[0];
    let object = world.hypervisor(&host).await;
    assert_eq!(
        (&owner.name, Some(&owner.uid)),
        (&host, object.uid().as_ref())
    );
    assert_eq!(owner.controller, Some(true));
    assert_eq!(owner.block_owner_deletion, Some(true));
    assert_eq!(object.spec.maintenance_reason.as_deref(), Some("a fan"));
    for managed in [eviction.managed_fields(), object.managed_fields()] {
        let cli = Some(FieldManager::Cli.as_str());
        assert!(managed.iter().any(|entry| entry.manager.as_deref() == cli));
    }

    // Each write is seen before the next one: a watch may leave out what is in between.
    let mut session = session;
    session
        .says("waiting: the operator has not begun yet")
        .await;
    let wait = json!({ "reason": "Target", "message": "no room", "since": "2026-01-01T00:00:00Z" });
    let rows = json!([row("a", "Pending"), blocked("b\u{1b}[2J")]);
    engine
        .writes(
            json!({ "startedAt": "2026-01-01T00:00:00Z", "waitingFor": wait, "instances": rows }),
        )
        .await;
    session.says("waiting: no room\n").await;
    let rows = |progress| json!([moving("a", progress), blocked("b\u{1b}[2J")]);
    engine
        .writes(json!({ "waitingFor": null, "instances": rows(1) }))
        .await;
    session.says("the wait is over\n").await;
    // Progress alone is no line.
    engine.writes(json!({ "instances": rows(50) })).await;
    engine.writes(json!({ "instances": rows(90) })).await;
    let last = json!([moved("a"), blocked("b\u{1b}[2J")]);
    engine.ends(Outcome::PartiallyFailed, last).await;
    let ended = session.end().await;
    ended.expect(3, &[]);
    let expected = format!(
        "\
{host}: the drain begins: the host is taken out of service and its instances are moved away
{host}: waiting: the operator has not begun yet
{host}: b [2J is blocked: NoCapacity: no host has room
{host}: waiting: no room
{host}: a is moving: here -> there, live
{host}: the wait is over
{host}: a has moved: here -> there, live
"
    );
    let (lines, end) = ended.out.split_once("HOST").unwrap();
    assert_eq!(lines, expected);
    for word in [
        "PartiallyFailed",
        "1m40s",
        "so says the engine",
        "cobalt undrain",
    ] {
        assert!(end.contains(word), "{end}");
    }
    assert!(!ended.out.contains('\u{1b}'), "{:?}", ended.out);
    assert_eq!(ended.err, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_outcome_has_its_exit_code() {
    let world = world().await;
    let try_out = |outcome: Outcome, code: i32, word: &'static str| {
        let world = &world;
        async move {
            let host = world.host("outcome").await;
            let session = world.start(&["drain", &host, "--wait"]);
            let engine = FakeEngine::of(world, &host).await;
            engine.ends(outcome, json!([moved("a")])).await;
            let ended = session.end().await;
            ended.expect(code, &[outcome.as_str(), word]);
        }
    };
    futures::join!(
        try_out(Outcome::Succeeded, 0, "puts it back"),
        try_out(Outcome::Failed, 1, "mend what stands above"),
        try_out(Outcome::PartiallyFailed, 3, "mend what stands above"),
        try_out(Outcome::TimedOut, 4, "longer --timeout"),
        try_out(Outcome::Cancelled, 5, "back in service"),
    );
    // Usage.
    world.run(&["drain"]).await.expect(2, &["NODE"]);
    let wrong = ["drain", "hv1", "--timeout", "soon"];
    world.run(&wrong).await.expect(2, &["write it like 90m"]);
    let help = world.run(&["drain", "--help"]).await;
    help.expect(0, &["Examples:", "Exit codes:", "130  Ctrl-C"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_are_followed_together_and_the_worst_is_the_exit_code() {
    let world = world().await;
    let (one, two) = (world.host("one").await, world.host("two").await);
    let mut session = world.start(&["drain", &one, &two, &one, "--wait"]);
    let first = FakeEngine::of(&world, &one).await;
    let second = FakeEngine::of(&world, &two).await;
    // The second one is seen while the first one is under way.
    second
        .ends(Outcome::TimedOut, json!([row("b", "Pending")]))
        .await;
    first.writes(json!({ "instances": [moving("a", 1)] })).await;
    session.says("a is moving").await;
    first.ends(Outcome::Succeeded, json!([moved("a")])).await;
    let ended = session.end().await;
    ended.expect(
        4,
        &[
            "Succeeded",
            "TimedOut",
            &format!("{two}: so says the engine"),
        ],
    );
    assert_eq!(
        ended
            .out
            .matches(&format!("{one}: the drain begins"))
            .count(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_drained_is_refused_and_stays_untouched() {
    let world = world().await;
    let fine = world.host("fine").await;
    let spec = |kind: &str| json!({ "maintenance": kind, "maintenanceReason": "why" });
    let cases = [
        (
            json!({ "lifecycleEnabled": false }),
            "Active",
            labels::LIFECYCLE,
        ),
        (json!({}), "Testing", "cobalt onboard status"),
        (json!({}), "Decommissioned", "has left Nova"),
        (spec("auto"), "Evicting", "automation"),
        (spec("ha"), "Evicting", "recovered"),
        (spec("termination"), "Evicting", "frozen"),
    ];
    for (spec, phase, word) in cases {
        let host = world.host_with("refused", spec, phase).await;
        let before = world.hypervisor(&host).await.resource_version();
        for flags in [&["--wait"][..], &["--plan"], &[]] {
            // One that is refused keeps the other from being touched.
            let arguments = [&["drain", &host][..], flags].concat();
            let ended = world.run(&arguments).await;
            ended.expect(1, &["cannot be drained", word]);
        }
        let ended = world.run(&["drain", &fine, &host]).await;
        ended.expect(1, &[word]);
        assert_eq!(world.hypervisor(&host).await.resource_version(), before);
        assert!(world.evictions().get_opt(&host).await.unwrap().is_none());
    }
    let ended = world.run(&["drain", "nobody"]).await;
    ended.expect(1, &["kubectl get hypervisors"]);
    assert!(world.evictions().get_opt(&fine).await.unwrap().is_none());

    // An Eviction of some instances only is not taken for a drain.
    let part = json!({ "hypervisor": fine, "reason": "part", "instances": ["00000000-0000-0000-0000-000000000001"] });
    world.make_eviction(&fine, part).await;
    let ended = world.run(&["drain", &fine]).await;
    ended.expect(1, &["does not empty the host"]);
    assert_eq!(
        world.hypervisor(&fine).await.spec.maintenance(),
        Maintenance::Unset
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_under_way_is_joined_and_an_ended_one_is_replaced() {
    let world = world().await;
    let host = world.host("again").await;
    let ended = world.run(&["drain", &host, "--parallel", "2"]).await;
    ended.expect(
        0,
        &[
            "the drain begins",
            &format!("kubectl get evi {host} -w"),
            "cobalt undrain",
        ],
    );
    let first = world.evictions().get(&host).await.unwrap();
    let object = world.hypervisor(&host).await;

    // Nothing new is no write.
    world.run(&["drain", &host]).await.expect(0, &["joined it"]);
    let same = world.evictions().get(&host).await.unwrap();
    assert_eq!(same.resource_version(), first.resource_version());
    let still = world.hypervisor(&host).await;
    assert_eq!(still.resource_version(), object.resource_version());

    // What is new is told to the one under way.
    let more = [
        "drain",
        &host,
        "--parallel",
        "4",
        "--timeout",
        "2h",
        "--reason",
        "x",
    ];
    world.run(&more).await.expect(0, &["joined it"]);
    let told = world.evictions().get(&host).await.unwrap();
    assert_eq!(told.uid(), first.uid());
    assert_eq!(told.spec.parallelism, Some(4));
    assert_eq!(told.spec.deadline.as_deref(), Some("2h"));
    assert_eq!(told.spec.reason, "x");
    let object = world.hypervisor(&host).await;
    assert_eq!(object.spec.maintenance_reason.as_deref(), Some("x"));

    // It ended, and goes when its engine lets it go: then a new one begins, for the same reason.
    let engine = FakeEngine::of(&world, &host).await;
    let held = json!({ "metadata": { "finalizers": [finalizers::EVICTION_IN_FLIGHT] } });
    let params = PatchParams::default();
    let evictions = world.evictions();
    evictions
        .patch(&host, &params, &Patch::Merge(&held))
        .await
        .unwrap();
    engine.ends(Outcome::Failed, json!([])).await;
    let session = world.start(&["drain", &host, "--wait"]);
    let going =
        |one: Option<&Eviction>| one.is_some_and(|one| one.metadata.deletion_timestamp.is_some());
    let going = await_condition(world.evictions(), &host, going);
    soon("it is deleted", going).await.unwrap();
    let free = json!({ "metadata": { "finalizers": null } });
    evictions
        .patch(&host, &params, &Patch::Merge(&free))
        .await
        .unwrap();
    let uid = first.uid().unwrap();
    let other = |one: Option<&Eviction>| one.is_some_and(|one| one.uid().as_ref() != Some(&uid));
    let other = await_condition(world.evictions(), &host, other);
    let other = soon("another one is made", other).await.unwrap().unwrap();
    assert_eq!(other.spec.reason, "x");
    engine.ends(Outcome::Succeeded, json!([])).await;
    session
        .end()
        .await
        .expect(0, &["the drain begins", "Succeeded"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_cannot_be_finished_leaves_nothing() {
    let world = world().await;
    let host = world.host("half").await;
    let half = world.people.path().join(HALF);
    let ended = Session::start(&half, &["drain", &host]).end().await;
    ended.expect(1, &["failed to change the Hypervisor", "forbidden"]);
    let left = world.evictions().get_opt(&host).await.unwrap();
    assert!(left.is_none(), "{left:?}");
}

/// The plan that a command has made.
async fn plan_of<'a>(world: &'a World, host: &str) -> FakeEngine<'a> {
    let eviction = until("the plan is there", || async {
        let all = world.evictions().list(&Default::default()).await.unwrap();
        let mut all = all.items.into_iter();
        all.find(|one| one.spec.hypervisor == host && one.metadata.deletion_timestamp.is_none())
    })
    .await;
    assert!(eviction.spec.dry_run());
    assert!(eviction.name_any().starts_with(&format!("{host}-plan-")));
    assert_eq!(eviction.owner_references()[0].controller, None);
    FakeEngine {
        world,
        eviction: eviction.name_any(),
    }
}

async fn no_plan_is_left(world: &World, host: &str) {
    let all = world.evictions().list(&Default::default()).await.unwrap();
    assert!(all.items.iter().all(|one| one.spec.hypervisor != host));
    let object = world.hypervisor(host).await;
    assert_eq!(object.spec.maintenance(), Maintenance::Unset);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_shown_and_nothing_is_left_of_it() {
    let world = world().await;
    let host = world.host("plan").await;
    let movable = |name: &str| {
        let mut row = row(name, "Pending");
        row["status"] = json!("ACTIVE");
        row["memoryMb"] = json!(2048);
        row["preflight"] = json!({ "verdict": "Movable", "hosts": 2 });
        row
    };

    let session = world.start(&["drain", &host, "--plan"]);
    let engine = plan_of(&world, &host).await;
    let rows = json!([movable("easy"), blocked("hard")]);
    engine.ends(Outcome::Succeeded, rows).await;
    let ended = session.end().await;
    ended.expect(3, &["1 can move", "1 blocked"]);
    let expected = "\
NAME  STATE   MEMORY  VERDICT  HOSTS  REASON
hard  -       -       Blocked  0      NoCapacity: no host has room
easy  ACTIVE  2 GiB   Movable  2
";
    assert!(ended.out.starts_with(expected), "{}", ended.out);
    no_plan_is_left(&world, &host).await;

    for (outcome, rows, code, word) in [
        (
            Outcome::Succeeded,
            json!([movable("easy")]),
            0,
            "1 can move",
        ),
        (Outcome::Succeeded, json!([]), 0, "nothing to move"),
        (Outcome::Failed, json!([]), 1, "so says the engine"),
    ] {
        let session = world.start(&["drain", &host, "--plan"]);
        plan_of(&world, &host).await.ends(outcome, rows).await;
        session.end().await.expect(code, &[word]);
        no_plan_is_left(&world, &host).await;
    }

    for signal in [Signal::INT, Signal::TERM] {
        let session = world.start(&["drain", &host, "--plan"]);
        plan_of(&world, &host).await;
        session.signal(signal);
        session.end().await.expect(130, &[]);
        no_plan_is_left(&world, &host).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_an_interrupt_leaves_the_drain_running() {
    let world = world().await;
    let host = world.host("left").await;
    let mut session = world.start(&["drain", &host, "--wait"]);
    session.says("waiting: the operator").await;
    session.signal(Signal::INT);
    session
        .end()
        .await
        .expect(130, &["left running", "cobalt undrain"]);
    let eviction = world.evictions().get(&host).await.unwrap();
    assert!(!eviction.spec.cancel());
    let object = world.hypervisor(&host).await;
    assert_eq!(object.spec.maintenance(), Maintenance::Manual);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_eviction_is_a_cancelled_drain() {
    let world = world().await;
    let host = world.host("deleted").await;
    let mut session = world.start(&["drain", &host, "--wait"]);
    session.says("waiting: the operator").await;
    let params = DeleteParams::default();
    world.evictions().delete(&host, &params).await.unwrap();
    session.end().await.expect(5, &["its Eviction was deleted"]);
}

/// How far up the cursor was ever moved.
fn highest(said: &str) -> usize {
    let moves = said.split("\u{1b}[").filter_map(|part| {
        let (number, _) = part.split_once('A')?;
        number.parse().ok()
    });
    moves.max().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_shows_a_frame_that_fits_and_ends_with_the_table() {
    let world = world().await;
    let host = world.host("frame").await;
    let mut session = world.start_on_terminal(70, 8, &["drain", &host, "--wait"]);
    let engine = FakeEngine::of(&world, &host).await;
    session.says("waiting: the operator").await;
    let rows: Vec<Value> = (0..30).map(|n| moving(&format!("vm-{n}"), n)).collect();
    engine.writes(json!({ "instances": rows })).await;
    session.says("vm-0").await;
    session.says("here -> there, live").await;
    session.says(".. and 25 more").await;
    engine.ends(Outcome::Succeeded, json!([moved("a")])).await;
    let ended = session.end().await;
    ended.expect(0, &["Succeeded", "puts it back"]);
    assert_eq!(highest(&ended.out), 7, "{:?}", ended.out);
    // The frame is taken away before the table is written.
    let (_, end) = ended.out.rsplit_once("\u{1b}[J").unwrap();
    assert!(end.starts_with("HOST"), "{end}");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_terminal_an_interrupt_is_a_question() {
    let world = world().await;
    // Leave it: by an answer, by another interrupt, by the end of the input.
    for answer in ["l\n", "\u{3}", "\u{4}"] {
        let host = world.host("asked").await;
        let mut session = world.start_on_terminal(100, 20, &["drain", &host, "--wait"]);
        session.says("waiting: the operator").await;
        session.types("\u{3}").await;
        session.says("running (so does Ctrl-C): ").await;
        if answer == "l\n" {
            session.types("what?\n").await;
            session.says("running (so does Ctrl-C): ").await;
        }
        session.types(answer).await;
        session.end().await.expect(130, &["left running"]);
        let object = world.hypervisor(&host).await;
        assert_eq!(object.spec.maintenance(), Maintenance::Manual, "{answer:?}");
    }

    // Cancel it: the host goes back into service, and the end is followed.
    let host = world.host("cancels").await;
    let mut session = world.start_on_terminal(100, 20, &["drain", &host, "--wait"]);
    let engine = FakeEngine::of(&world, &host).await;
    engine
        .writes(json!({ "instances": [moving("a", 1)] }))
        .await;
    session.says("here -> there").await;
    session.types("\u{3}").await;
    session.says("running (so does Ctrl-C): ").await;
    session.types("c\n").await;
    session.says("being cancelled").await;
    let object = world.hypervisor(&host).await;
    assert_eq!(object.spec.maintenance(), Maintenance::Unset);
    engine
        .ends(Outcome::Cancelled, json!([row("a", "Cancelled")]))
        .await;
    session.end().await.expect(5, &["Cancelled"]);

    // It ends while the question stands.
    let host = world.host("ends").await;
    let mut session = world.start_on_terminal(100, 20, &["drain", &host, "--wait"]);
    let engine = FakeEngine::of(&world, &host).await;
    session.says("waiting: the operator").await;
    session.types("\u{3}").await;
    session.says("running (so does Ctrl-C): ").await;
    engine.ends(Outcome::Succeeded, json!([])).await;
    session.end().await.expect(0, &["Succeeded"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn undrain_puts_a_host_back_and_says_what_it_waits_for() {
    let world = world().await;
    let host = world.host("back").await;
    world.run(&["drain", &host]).await.expect(0, &[]);
    let engine = FakeEngine::of(&world, &host).await;
    engine
        .writes(json!({ "instances": [moving("a", 10)] }))
        .await;
    let said = |evicting: bool, disabled: Status| {
        let disabled = condition(
            Type::HypervisorDisabled,
            disabled,
            Reason::Succeeded,
            "kept",
        );
        let running = condition(Type::Evicting, Status::True, Reason::Running, "1 to go");
        let all = if evicting {
            vec![running, disabled]
        } else {
            vec![disabled]
        };
        json!({ "conditions": all, "waitingFor": null })
    };
    world.host_status(&host, said(true, Status::True)).await;

    let mut session = world.start(&["undrain", &host, "--wait"]);
    session.says("goes back into service").await;
    session.says(&format!("waiting: the Eviction {host}")).await;
    let object = world.hypervisor(&host).await;
    assert_eq!(object.spec.maintenance, None);
    assert_eq!(object.spec.maintenance_reason, None);
    // The operator takes its own Eviction back; a drain in between is refused.
    let eviction = world.evictions().get(&host).await.unwrap();
    assert!(!eviction.spec.cancel());
    let ended = world.run(&["drain", &host]).await;
    ended.expect(1, &["cobalt undrain --wait"]);
    engine
        .ends(Outcome::Cancelled, json!([row("a", "Cancelled")]))
        .await;
    session.says("a stays: the drain was cancelled").await;
    session.says("waiting: 1 to go").await;
    let params = DeleteParams::default();
    world.evictions().delete(&host, &params).await.unwrap();
    world.host_status(&host, said(false, Status::True)).await;
    session.says("waiting: kept").await;
    world.host_status(&host, said(false, Status::False)).await;
    session.end().await.expect(0, &["back in service"]);

    // Nothing to undo is no write.
    let before = world.hypervisor(&host).await.resource_version();
    let ended = world.run(&["undrain", &host, "--wait"]).await;
    ended.expect(0, &["nothing to undo", "back in service"]);
    assert_eq!(world.hypervisor(&host).await.resource_version(), before);

    // Somebody else keeps it disabled: that is told, and not waited for.
    let other = condition(
        Type::HypervisorDisabled,
        Status::True,
        Reason::Failed,
        "by Ann",
    );
    world
        .host_status(&host, json!({ "conditions": [other] }))
        .await;
    let ended = world.run(&["undrain", &host, "--wait"]).await;
    ended.expect(1, &["not back in service: by Ann"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn undrain_cancels_what_nobody_else_takes_back_and_refuses_what_is_no_drain() {
    let world = world().await;
    let host = world.host("bare").await;
    let name = format!("{host}-by-hand");
    let spec = json!({ "hypervisor": host, "reason": "by hand" });
    world.make_eviction(&name, spec).await;
    let ended = world.run(&["undrain", &host]).await;
    ended.expect(0, &["cancelled: the Eviction", &name]);
    let eviction = world.evictions().get(&name).await.unwrap();
    assert!(eviction.spec.cancel());
    let mut session = world.start(&["undrain", &host, "--wait"]);
    session.says(&format!("waiting: the Eviction {name}")).await;
    let engine = FakeEngine {
        world: &world,
        eviction: name,
    };
    engine.ends(Outcome::Cancelled, json!([])).await;
    session.end().await.expect(0, &["back in service"]);

    // A drain that the operator has not noticed yet is called off, too.
    let host = world.host("early").await;
    world.run(&["drain", &host]).await.expect(0, &[]);
    world.run(&["undrain", &host]).await.expect(0, &[]);
    let eviction = world.evictions().get(&host).await.unwrap();
    assert!(eviction.spec.cancel());

    for (kind, word) in [
        ("auto", "automation"),
        ("ha", "recovered"),
        ("termination", "for good"),
    ] {
        let spec = json!({ "maintenance": kind, "maintenanceReason": "why" });
        let host = world.host_with("kept", spec, "Evicting").await;
        let ended = world.run(&["undrain", &host, "--wait"]).await;
        ended.expect(1, &["is not put back into service", word]);
        let object = world.hypervisor(&host).await;
        assert_eq!(object.spec.maintenance().as_str(), kind);
    }
    let ended = world.run(&["undrain", "nobody"]).await;
    ended.expect(1, &["kubectl get hypervisors"]);

    // What puts it into maintenance again while it is followed ends the wait.
    let host = world.host("taken").await;
    let running = condition(Type::Evicting, Status::True, Reason::Running, "1 to go");
    world
        .host_status(&host, json!({ "conditions": [running] }))
        .await;
    let mut session = world.start(&["undrain", &host, "--wait"]);
    session.says("waiting: 1 to go").await;
    world
        .change_host(&host, json!({ "maintenance": "ha" }))
        .await;
    session.end().await.expect(1, &["maintenance is ha again"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_is_followed_across_an_outage_of_the_api_server() {
    let lab = lab(LabConfig::api_only("outage")).await;
    let kubeconfig = lab.kubeconfig();
    populate(&cobalt_lab::cluster::client(&kubeconfig).await.unwrap()).await;
    let world = World::of(&kubeconfig).await;
    let host = world.host("outage").await;
    let mut session = world.start(&["drain", &host, "--wait"]);
    session.says("waiting: the operator").await;
    lab.fault(Fault::Kill, "hypervisor/apiserver")
        .await
        .unwrap();
    let mut errors = session.child.stderr.take().unwrap();
    let mut told = String::new();
    while !told.contains("trying again") {
        let mut chunk = [0; 1024];
        let read = soon("it tells", errors.read(&mut chunk)).await.unwrap();
        assert!(read > 0, "it ended: {told}");
        told.push_str(&String::from_utf8_lossy(&chunk[..read]));
    }
    lab.fault(Fault::Heal, "hypervisor/apiserver")
        .await
        .unwrap();
    until("the API server answers", || async {
        world.evictions().get(&host).await.ok()
    })
    .await;
    let engine = FakeEngine {
        world: &world,
        eviction: host.clone(),
    };
    engine.ends(Outcome::Succeeded, json!([moved("a")])).await;
    session.end().await.expect(0, &["a has moved", "Succeeded"]);
    lab.down().await.unwrap();
}

/// The document that a command has printed, and nothing else.
#[track_caller]
fn document(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn with_json_the_output_is_one_document_and_progress_is_elsewhere() {
    let world = world().await;
    let host = world.host("json").await;

    let session = world.start(&["drain", &host, "--plan", "-o", "json"]);
    let engine = plan_of(&world, &host).await;
    engine.ends(Outcome::Succeeded, json!([blocked("a")])).await;
    let ended = session.end().await;
    ended.expect(3, &[]);
    let said = document(&ended);
    assert_eq!(said["hosts"][0]["name"], json!(host));
    assert_eq!(said["hosts"][0]["canAllMove"], false);
    assert_eq!(said["hosts"][0]["instances"][0]["id"], "id-a");

    let session = world.start(&["drain", &host, "--wait", "-o", "json"]);
    let engine = FakeEngine::of(&world, &host).await;
    engine.ends(Outcome::Succeeded, json!([moved("a")])).await;
    let ended = session.end().await;
    ended.expect(0, &[]);
    let said = document(&ended);
    assert_eq!(said["hosts"][0]["name"], json!(host));
    assert_eq!(said["hosts"][0]["outcome"], "Succeeded");
    assert_eq!(said["hosts"][0]["status"]["instances"][0]["state"], "Moved");
    assert!(ended.err.contains("the drain begins"), "{ended:?}");

    let ended = world.run(&["undrain", &host, "--wait", "-o", "json"]).await;
    ended.expect(0, &["goes back into service"]);
    let said = document(&ended);
    assert_eq!(said["hosts"][0]["cleared"], true);
    assert_eq!(said["hosts"][0]["inService"], true);

    let other = world.host("json").await;
    let ended = world.run(&["drain", &other, "-o", "json"]).await;
    ended.expect(0, &["the drain begins"]);
    assert_eq!(document(&ended)["hosts"][0]["joined"], false);

    // An error is no document.
    let ended = world.run(&["drain", "nobody", "-o", "json"]).await;
    ended.expect(1, &["there is no Hypervisor"]);
    assert_eq!(ended.out, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn onboard_status_without_a_name_shows_every_host() {
    let world = world().await;
    let well = world.host("well").await;
    let tested = world.host_with("tested", json!({}), "Testing").await;
    let wait =
        json!({ "reason": "Check", "message": "a test server", "since": "2026-01-01T00:00:00Z" });
    world
        .host_status(&tested, json!({ "waitingFor": wait }))
        .await;

    let ended = world.run(&["onboard", "status"]).await;
    ended.expect(0, &["NAME", "PHASE", "SINCE", "WAITING FOR"]);
    let line = |host: &str| {
        let mut lines = ended.out.lines();
        lines.find(|line| line.starts_with(host)).unwrap()
    };
    assert!(line(&well).contains("Active"), "{}", line(&well));
    let of_tested = line(&tested);
    for word in ["Testing", "a test server", "h"] {
        assert!(of_tested.contains(word), "{of_tested}");
    }

    let all = document(&world.run(&["onboard", "status", "-o", "json"]).await);
    let all = all["hosts"].as_array().unwrap();
    let found = all
        .iter()
        .find(|host| host["name"] == json!(tested))
        .unwrap();
    assert_eq!(found["phase"], "Testing");
    assert_eq!(found["waitingFor"], wait);
    let one = world
        .run(&["onboard", "status", &tested, "-o", "json"])
        .await;
    assert_eq!(document(&one)["hosts"], json!([found]));

    // Who reads only the beginning is no reason to panic.
    let person = world.people.path().join(DRAINER);
    let (code, err) = crate::output::without_a_reader(&person, &["onboard", "status"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
}
