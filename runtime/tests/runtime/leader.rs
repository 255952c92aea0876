//! Leader election on a real API server.

use std::time::Duration;

use cobalt_runtime::{LeaderConfig, LeaderError, Leadership, Term, chain, lead, led};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::io::AsyncBufReadExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{Road, Way, namespace, server, soon};

const NAME: &str = "4c28796a.cloud.sap";

/// A candidate under way.
struct Candidate {
    leadership: watch::Receiver<Leadership>,
    term: Term,
    cancel: CancellationToken,
    task: JoinHandle<Result<(), LeaderError>>,
}

/// Short times: `duration` is what the others wait for.
fn config(namespace: &str, identity: &str, duration: u64) -> LeaderConfig {
    LeaderConfig {
        identity: identity.to_owned(),
        duration: Duration::from_secs(duration),
        renew_deadline: Duration::from_secs(duration) * 2 / 3,
        retry: Duration::from_millis(200),
        ..LeaderConfig::new(namespace, NAME, "unused")
    }
}

fn start(client: Client, config: LeaderConfig) -> Candidate {
    let (leading, leadership) = watch::channel(Leadership::Unknown("not started".to_owned()));
    let cancel = CancellationToken::new();
    let term = Term::default();
    let task = tokio::spawn(lead(client, config, leading, term.clone(), cancel.clone()));
    Candidate {
        leadership,
        term,
        cancel,
        task,
    }
}

impl Candidate {
    async fn sees(&mut self, wanted: &Leadership) {
        let seen = self.leadership.wait_for(|now| now == wanted);
        drop(soon(&format!("{wanted:?}"), seen).await.unwrap());
    }

    async fn end(self) -> Result<(), LeaderError> {
        soon("the end", self.task).await.unwrap()
    }

    fn leads(&self) -> bool {
        *self.leadership.borrow() == Leadership::Me
    }
}

fn other(identity: &str) -> Leadership {
    Leadership::Other(identity.to_owned())
}

fn leases(client: &Client, namespace: &str) -> Api<Lease> {
    Api::namespaced(client.clone(), namespace)
}

async fn spec(leases: &Api<Lease>) -> serde_json::Value {
    let lease = leases.get(NAME).await.unwrap();
    serde_json::to_value(lease.spec).unwrap()
}

/// Writes a Lease as a holder of the Go library does.
async fn go_holder(leases: &Api<Lease>, identity: &str, seconds: u32) {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": NAME},
        "spec": {
            "holderIdentity": identity, "leaseDurationSeconds": seconds, "leaseTransitions": 4,
            "acquireTime": "2026-01-01T00:00:00.123456Z", "renewTime": "2026-01-01T00:00:10.654321Z",
        },
    });
    let lease = serde_json::from_value(lease).unwrap();
    leases.create(&PostParams::default(), &lease).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_leads_changes_something() {
    let (_, client) = server().await;
    let namespace = namespace(&client, "led").await;
    let mut one = start(client.clone(), config(&namespace, "one", 3));
    let theirs = led(client.clone(), one.term.clone());
    let maps: Api<ConfigMap> = Api::namespaced(theirs, &namespace);
    let map = |name: &str| {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.to_owned());
        map
    };
    one.sees(&Leadership::Me).await;
    let params = PostParams::default();
    maps.create(&params, &map("led")).await.unwrap();

    // It lets go, and whatever it had begun changes nothing any more.
    one.cancel.cancel();
    one.sees(&Leadership::Unknown("told to end".to_owned()))
        .await;
    let refused = maps.create(&params, &map("late")).await.unwrap_err();
    assert!(chain(&refused).contains("does not lead"), "{refused:?}");
    assert!(maps.get_opt("late").await.unwrap().is_none());
    assert!(maps.get_opt("led").await.unwrap().is_some());
    one.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_waited_for_its_connection_is_not_sent_after_the_term() {
    let (server, client) = server().await;
    let namespace = namespace(&client, "late").await;
    let mut one = start(client.clone(), config(&namespace, "one", 3));
    one.sees(&Leadership::Me).await;
    // Bytes go nowhere: the handshake of the only connection hangs, and the call with it.
    let (mut road, slow) = Road::open(server).await;
    road.set(Way::Silent);
    let maps: Api<ConfigMap> = Api::namespaced(led(slow, one.term.clone()), &namespace);
    let create = tokio::spawn(async move {
        let mut map = ConfigMap::default();
        map.metadata.name = Some("late".to_owned());
        maps.create(&PostParams::default(), &map).await
    });
    soon("a connection", road.taken()).await;
    one.cancel.cancel();
    one.sees(&Leadership::Unknown("told to end".to_owned()))
        .await;
    road.set(Way::Open);
    let refused = soon("an end of the call", create).await.unwrap();
    let refused = refused.unwrap_err();
    assert!(chain(&refused).contains("does not lead"), "{refused:?}");
    let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
    assert!(maps.get_opt("late").await.unwrap().is_none());
    one.end().await.unwrap();
}

#[tokio::test]
async fn one_of_two_leads_and_the_other_takes_over_when_it_lets_go() {
    let (_, client) = server().await;
    let namespace = namespace(&client, "release").await;
    // So long that only letting go can be why the second takes over.
    let mut first = start(client.clone(), config(&namespace, "first", 600));
    first.sees(&Leadership::Me).await;
    let mut second = start(client.clone(), config(&namespace, "second", 600));
    second.sees(&other("first")).await;
    let leases = leases(&client, &namespace);
    assert_eq!(spec(&leases).await["leaseTransitions"], 0);
    assert_eq!(spec(&leases).await["leaseDurationSeconds"], 600);

    first.cancel.cancel();
    second.sees(&Leadership::Me).await;
    assert!(first.end().await.is_ok());
    let taken = spec(&leases).await;
    assert_eq!(taken["holderIdentity"], "second");
    assert_eq!(taken["leaseTransitions"], 1);

    second.cancel.cancel();
    assert!(second.end().await.is_ok());
    let free = spec(&leases).await;
    assert_eq!(free["holderIdentity"], "");
    assert_eq!(free["leaseDurationSeconds"], 1);
    assert_eq!(free["leaseTransitions"], 1);
}

#[tokio::test]
async fn a_holder_that_is_killed_is_followed_when_its_time_is_up() {
    let (_, client) = server().await;
    let namespace = namespace(&client, "killed").await;
    let mut first = start(client.clone(), config(&namespace, "first", 3));
    first.sees(&Leadership::Me).await;
    let mut second = start(client.clone(), config(&namespace, "second", 600));
    second.sees(&other("first")).await;
    first.task.abort();
    second.sees(&Leadership::Me).await;
    let spec = spec(&leases(&client, &namespace)).await;
    assert_eq!(spec["leaseTransitions"], 1);
    second.cancel.cancel();
    assert!(second.end().await.is_ok());
}

#[tokio::test]
async fn a_holder_that_cannot_renew_has_ended_before_another_leads() {
    let (api_server, client) = server().await;
    for way in [Way::Cut, Way::Silent] {
        let namespace = namespace(&client, "cut").await;
        let (road, far) = Road::open(api_server).await;
        let mut first = start(far, config(&namespace, "first", 6));
        first.sees(&Leadership::Me).await;
        let mut second = start(client.clone(), config(&namespace, "second", 600));
        second.sees(&other("first")).await;

        road.set(way);
        let lost = tokio::select! {
            ended = &mut first.task => ended.unwrap(),
            () = second.sees(&Leadership::Me) => panic!("{way:?}: two lead"),
        };
        assert!(
            matches!(&lost, Err(LeaderError::NotRenewed { .. })),
            "{way:?}: {lost:?}"
        );
        assert!(!first.leads());
        second.sees(&Leadership::Me).await;
        second.cancel.cancel();
        assert!(second.end().await.is_ok());
    }
}

#[tokio::test]
async fn a_holder_goes_on_through_a_short_cut() {
    let (api_server, client) = server().await;
    let namespace = namespace(&client, "short").await;
    let (road, far) = Road::open(api_server).await;
    let mut first = start(far, config(&namespace, "first", 600));
    first.sees(&Leadership::Me).await;
    let leases = leases(&client, &namespace);
    road.set(Way::Cut);
    let before = spec(&leases).await["renewTime"].clone();
    road.set(Way::Open);
    let renewed =
        kube::runtime::wait::await_condition(leases.clone(), NAME, |lease: Option<&Lease>| {
            let time = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref());
            time.is_some_and(|time| serde_json::to_value(time).unwrap() != before)
        });
    soon("a renewal", renewed).await.unwrap();
    assert!(first.leads());
    first.cancel.cancel();
    assert!(first.end().await.is_ok());
}

#[tokio::test]
async fn a_holder_of_the_go_library_is_respected_until_its_time_is_up() {
    let (_, client) = server().await;
    let namespace = namespace(&client, "go").await;
    let leases = leases(&client, &namespace);
    // Its clock is far behind: only that the record does not change proves that it is gone.
    go_holder(&leases, "go-pod_1", 3).await;
    let mut ours = start(client.clone(), config(&namespace, "ours", 600));
    ours.sees(&other("go-pod_1")).await;
    ours.sees(&Leadership::Me).await;
    let spec = spec(&leases).await;
    assert_eq!(spec["holderIdentity"], "ours");
    assert_eq!(spec["leaseTransitions"], 5);
    ours.cancel.cancel();
    assert!(ours.end().await.is_ok());
}

#[tokio::test]
async fn a_go_holder_that_lets_go_is_followed_at_once() {
    let (_, client) = server().await;
    let namespace = namespace(&client, "gone").await;
    let leases = leases(&client, &namespace);
    go_holder(&leases, "go-pod_1", 600).await;
    let mut ours = start(client.clone(), config(&namespace, "ours", 600));
    ours.sees(&other("go-pod_1")).await;
    let free = json!({"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}});
    let free = Patch::Merge(free);
    leases
        .patch(NAME, &PatchParams::default(), &free)
        .await
        .unwrap();
    ours.sees(&Leadership::Me).await;
    ours.cancel.cancel();
    assert!(ours.end().await.is_ok());
}

/// The scheduler of Kubernetes elects its leader with the Go library; here it asks for our Lease.
#[tokio::test]
async fn we_and_a_program_with_the_go_library_follow_each_other() {
    let (api_server, client) = server().await;
    let namespace = namespace(&client, "both").await;
    let leases = leases(&client, &namespace);
    let mut first = start(client.clone(), config(&namespace, "first", 600));
    first.sees(&Leadership::Me).await;

    let kubeconfig = api_server.kubeconfig.display();
    let mut scheduler = tokio::process::Command::new(api_server.bin.join("kube-scheduler"))
        .args([
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--secure-port=0".to_owned(),
            "--leader-elect=true".to_owned(),
            format!("--leader-elect-resource-name={NAME}"),
            format!("--leader-elect-resource-namespace={namespace}"),
            "--leader-elect-lease-duration=4s".to_owned(),
            "--leader-elect-renew-deadline=3s".to_owned(),
            "--leader-elect-retry-period=500ms".to_owned(),
        ])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let said = scheduler.stderr.take().unwrap();
    let mut said = tokio::io::BufReader::new(said).lines();
    let asks = async {
        while let Some(line) = said.next_line().await.unwrap() {
            if line
                .to_lowercase()
                .contains("attempting to acquire leader lease")
            {
                return;
            }
        }
        panic!("the scheduler has ended");
    };
    soon("the scheduler to ask for the Lease", asks).await;
    let drain = tokio::spawn(async move { while let Ok(Some(_)) = said.next_line().await {} });

    first.cancel.cancel();
    assert!(first.end().await.is_ok());
    let taken =
        kube::runtime::wait::await_condition(leases.clone(), NAME, |lease: Option<&Lease>| {
            let spec = lease.and_then(|lease| lease.spec.as_ref());
            spec.is_some_and(|spec| spec.lease_transitions == Some(1))
        });
    let taken = soon("the scheduler to lead", taken).await.unwrap().unwrap();
    let theirs = taken.spec.unwrap().holder_identity.unwrap();
    assert_ne!(theirs, "");

    let mut second = start(client.clone(), config(&namespace, "second", 600));
    second.sees(&other(&theirs)).await;
    scheduler.kill().await.unwrap();
    second.sees(&Leadership::Me).await;
    assert_eq!(spec(&leases).await["leaseTransitions"], 2);
    second.cancel.cancel();
    assert!(second.end().await.is_ok());
    drain.await.unwrap();
}

#[tokio::test]
async fn a_leader_whose_lease_is_taken_away_or_deleted_ends() {
    let (_, client) = server().await;
    for delete in [false, true] {
        let namespace = namespace(&client, "away").await;
        let leases = leases(&client, &namespace);
        let mut ours = start(client.clone(), config(&namespace, "ours", 600));
        ours.sees(&Leadership::Me).await;
        if delete {
            leases.delete(NAME, &Default::default()).await.unwrap();
        } else {
            let taken = Patch::Merge(json!({"spec": {"holderIdentity": "somebody"}}));
            leases
                .patch(NAME, &PatchParams::default(), &taken)
                .await
                .unwrap();
        }
        let lost = ours.end().await;
        assert!(
            matches!(&lost, Err(LeaderError::TakenAway { .. })),
            "{lost:?}"
        );
    }
}

#[tokio::test]
async fn somebody_else_who_touches_the_lease_ends_nobody() {
    let (_, client) = server().await;
    let namespace = namespace(&client, "touch").await;
    let leases = leases(&client, &namespace);
    let mut ours = start(client.clone(), config(&namespace, "ours", 600));
    ours.sees(&Leadership::Me).await;
    let note = Patch::Merge(json!({"metadata": {"annotations": {"note": "hello"}}}));
    let touched = leases.patch(NAME, &PatchParams::default(), &note).await;
    let before = touched.unwrap().spec;
    let renewed =
        kube::runtime::wait::await_condition(leases.clone(), NAME, |lease: Option<&Lease>| {
            lease.is_some_and(|lease| lease.spec != before)
        });
    let lease = soon("a renewal", renewed).await.unwrap().unwrap();
    assert_eq!(lease.metadata.annotations.unwrap()["note"], "hello");
    assert!(ours.leads());
    ours.cancel.cancel();
    assert!(ours.end().await.is_ok());
}

#[tokio::test]
async fn a_candidate_without_rights_says_so_and_waits() {
    let (api_server, _) = server().await;
    let kubeconfig = kube::config::Kubeconfig::read_from(&api_server.kubeconfig).unwrap();
    let config_file = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await;
    let mut nobody = config_file.unwrap();
    nobody.auth_info = kube::config::AuthInfo {
        token: Some("wrong".to_owned().into()),
        ..Default::default()
    };
    let nobody = Client::try_from(nobody).unwrap();
    let ours = start(nobody, config("default", "ours", 600));
    let mut leadership = ours.leadership.clone();
    let told = leadership.wait_for(
        |now| matches!(now, Leadership::Unknown(reason) if reason.contains("Unauthorized")),
    );
    drop(soon("a reason", told).await.unwrap());
    ours.cancel.cancel();
    assert!(ours.end().await.is_ok());
}
