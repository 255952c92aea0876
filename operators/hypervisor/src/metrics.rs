//! What the operator counts of itself, and what it tells of each host at a scrape.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use cobalt_api::conditions::HypervisorCondition as Type;
use cobalt_api::eviction::{Eviction, InstanceState, Outcome as EvictionOutcome};
use cobalt_api::hypervisor::HypervisorStatus;
use cobalt_api::names::labels;
use cobalt_openstack::{
    BreakerState, Client as OpenStack, Observer, Outcome as CallOutcome, Service,
};
use cobalt_runtime::{Queue, Store, metrics::text};
use jiff::Timestamp;
use kube::ResourceExt;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::action::Action;
use crate::fleet::Watched;
use crate::host::Known;
use crate::kept::Row;
use crate::reconcile::Outcome;

/// The conditions that are told of each host.
const TOLD: [Type; 9] = [
    Type::Onboarding,
    Type::Offboarded,
    Type::Ready,
    Type::TraitsUpdated,
    Type::AggregatesUpdated,
    Type::HypervisorDisabled,
    Type::Evicting,
    Type::LibVirtConnection,
    Type::TlsCertificateInstalled,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PassLabels {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    controller: &'static str,
    action: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InstanceLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    service: &'static str,
    call: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TimeLabels {
    service: &'static str,
    call: &'static str,
}

/// Counters of the operator.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Whether this process leads.
    pub leader: Gauge,
    /// Writes of a Hypervisor's status.
    pub status_writes: Counter,
    passes: Family<PassLabels, Counter>,
    pass_seconds: Histogram,
    actions: Family<ActionLabels, Counter>,
    /// Writes of an Eviction's status.
    pub eviction_writes: Counter,
    /// How long moves took that worked.
    pub eviction_move_seconds: Histogram,
    eviction_instances: Family<InstanceLabels, Counter>,
    evictions_ended: Family<PassLabels, Counter>,
    /// Evictions that were deleted because their host had too many.
    pub surplus_evictions: Counter,
    calls: Family<CallLabels, Counter>,
    call_seconds: Family<TimeLabels, Histogram>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            leader: Gauge::default(),
            status_writes: Counter::default(),
            passes: Family::default(),
            pass_seconds: Histogram::new(exponential_buckets(0.001, 4.0, 9)),
            actions: Family::default(),
            eviction_writes: Counter::default(),
            eviction_move_seconds: Histogram::new(exponential_buckets(1.0, 2.0, 13)),
            eviction_instances: Family::default(),
            evictions_ended: Family::default(),
            surplus_evictions: Counter::default(),
            calls: Family::default(),
            call_seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.005, 3.0, 8))
            }),
        }
    }
}

impl Metrics {
    /// Puts them into a registry.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("cobalt_operator");
        registry.register("leader", "Whether this process leads", self.leader.clone());
        registry.register(
            "status_writes",
            "Writes of the status of a Hypervisor",
            self.status_writes.clone(),
        );
        registry.register(
            "passes",
            "Turns for a host, by outcome",
            self.passes.clone(),
        );
        registry.register(
            "pass_seconds",
            "How long a turn took",
            self.pass_seconds.clone(),
        );
        registry.register("actions", "What was done for hosts", self.actions.clone());
        registry.register(
            "eviction_status_writes",
            "Writes of the status of an Eviction",
            self.eviction_writes.clone(),
        );
        registry.register(
            "eviction_move_seconds",
            "How long moves of instances took that worked",
            self.eviction_move_seconds.clone(),
        );
        registry.register(
            "eviction_instances",
            "Instances that came into a state of their eviction",
            self.eviction_instances.clone(),
        );
        registry.register(
            "evictions_ended",
            "Evictions that ended, by outcome",
            self.evictions_ended.clone(),
        );
        registry.register(
            "surplus_evictions_deleted",
            "Evictions that were deleted because the agent of their host made too many",
            self.surplus_evictions.clone(),
        );
        registry.register(
            "openstack_requests",
            "Requests to OpenStack, by call and outcome",
            self.calls.clone(),
        );
        registry.register(
            "openstack_request_seconds",
            "How long requests to OpenStack took",
            self.call_seconds.clone(),
        );
    }

    /// A turn ended.
    pub fn pass(&self, outcome: Outcome, took: Duration) {
        let outcome = match outcome {
            Outcome::Ok => "ok",
            Outcome::Conflict => "conflict",
            Outcome::Error => "error",
        };
        self.passes.get_or_create(&PassLabels { outcome }).inc();
        self.pass_seconds.observe(took.as_secs_f64());
    }

    /// A call for an eviction ended.
    pub fn eviction_action(&self, action: &'static str, worked: bool) {
        let labels = ActionLabels {
            controller: "eviction",
            action,
            outcome: if worked { "ok" } else { "error" },
        };
        self.actions.get_or_create(&labels).inc();
    }

    /// An instance came into a state.
    pub fn eviction_instance(&self, state: InstanceState) {
        let state = state.as_str();
        self.eviction_instances
            .get_or_create(&InstanceLabels { state })
            .inc();
    }

    /// An eviction ended.
    pub fn eviction_ended(&self, outcome: EvictionOutcome) {
        let outcome = outcome.as_str();
        self.evictions_ended
            .get_or_create(&PassLabels { outcome })
            .inc();
    }

    /// An action ended.
    pub fn action(&self, action: &Action, worked: bool) {
        let labels = ActionLabels {
            controller: action.controller(),
            action: action.name(),
            outcome: if worked { "ok" } else { "error" },
        };
        self.actions.get_or_create(&labels).inc();
    }
}

impl Observer for Metrics {
    fn on_call(&self, service: Service, call: &'static str, outcome: CallOutcome, took: Duration) {
        let service = service.as_str();
        let labels = CallLabels {
            service,
            call,
            outcome: outcome.as_str(),
        };
        self.calls.get_or_create(&labels).inc();
        let labels = TimeLabels { service, call };
        self.call_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }
}

/// All that a scrape looks at.
#[derive(Debug, Clone)]
pub struct Scrape {
    /// The counters.
    pub registry: Arc<Registry>,
    /// The hosts.
    pub hypervisors: Store<Row>,
    /// What empties them.
    pub evictions: Store<Eviction>,
    /// Who waits for a turn.
    pub queue: Queue<Arc<str>>,
    /// What is known of Nova.
    pub fleet: Watched,
    /// The cloud.
    pub openstack: OpenStack,
}

impl Scrape {
    /// The text of a scrape. What is told of hosts is made from the cache and kept nowhere.
    #[must_use]
    pub fn text(&self, now: Timestamp) -> String {
        let mut out = text(&self.registry);
        self.own(&mut out, now);
        let rows = self.hypervisors.all();
        hosts_text(&mut out, rows.iter().filter_map(|(_, row)| row.read()));
        let evictions: Vec<_> = self
            .evictions
            .all()
            .into_iter()
            .map(|(_, eviction)| eviction)
            .filter(|one| self.hypervisors.named(&one.spec.hypervisor).is_some())
            .collect();
        evictions_text(&mut out, &evictions);
        out
    }

    fn own(&self, out: &mut String, now: Timestamp) {
        gauge(
            out,
            "cobalt_operator_queue_depth",
            "Hosts that wait for a turn",
        );
        line(out, "cobalt_operator_queue_depth", &[], self.queue.len());
        let oldest = self.queue.oldest().unwrap_or_default().as_secs_f64();
        gauge(
            out,
            "cobalt_operator_queue_oldest_seconds",
            "How long the first of them has waited",
        );
        line(out, "cobalt_operator_queue_oldest_seconds", &[], oldest);
        if let Some(age) = self.fleet.age(now) {
            let name = "cobalt_operator_nova_snapshot_age_seconds";
            gauge(out, name, "How old the view of Nova is");
            line(out, name, &[], age.as_secs_f64().max(0.0));
        }
        let name = "cobalt_operator_openstack_breaker_open";
        gauge(
            out,
            name,
            "Whether a service of OpenStack is left alone because it fails",
        );
        for service in [Service::Identity, Service::Compute, Service::Placement] {
            let open = matches!(self.openstack.state(service), BreakerState::Open { .. });
            line(out, name, &[("service", service.as_str())], u8::from(open));
        }
    }
}

/// One line of a family for a host.
type Tell = fn(&mut String, &HypervisorStatus, [(&str, &str); 2]);

/// What is told of each host.
const FAMILIES: [(&str, &str, Tell); 5] = [
    (
        "cobalt_hypervisor_phase",
        "The phase of a host",
        |out, status, [host, zone]| {
            if let Some(phase) = status.phase {
                let labels = [host, zone, ("phase", phase.as_str())];
                line(out, "cobalt_hypervisor_phase", &labels, 1);
            }
        },
    ),
    (
        "cobalt_hypervisor_condition",
        "A condition of a host",
        |out, status, [host, zone]| {
            for condition in &status.conditions {
                if TOLD.iter().any(|told| told.as_str() == condition.type_) {
                    let labels = [
                        host,
                        zone,
                        ("condition", condition.type_.as_str()),
                        ("status", condition.status.as_str()),
                        ("reason", condition.reason.as_str()),
                    ];
                    line(out, "cobalt_hypervisor_condition", &labels, 1);
                }
            }
        },
    ),
    (
        "cobalt_hypervisor_waiting_since_seconds",
        "Since when a host waits for something",
        |out, status, [host, zone]| {
            if let Some(wait) = &status.waiting_for {
                let name = "cobalt_hypervisor_waiting_since_seconds";
                let labels = [host, zone, ("reason", wait.reason.as_str())];
                line(out, name, &labels, wait.since.0.as_second());
            }
        },
    ),
    (
        "cobalt_hypervisor_instances",
        "Instances on a host",
        |out, status, labels| {
            let count = status.num_instances.unwrap_or(0);
            line(out, "cobalt_hypervisor_instances", &labels, count);
        },
    ),
    (
        "cobalt_hypervisor_evicted",
        "Whether a host was emptied",
        |out, status, labels| {
            let evicted = u8::from(status.evicted == Some(true));
            line(out, "cobalt_hypervisor_evicted", &labels, evicted);
        },
    ),
];

/// Each host is read once: there are thousands, and they are kept as text.
fn hosts_text(out: &mut String, hosts: impl Iterator<Item = Arc<Known>>) {
    let mut texts = FAMILIES.map(|(name, help, _)| {
        let mut text = String::new();
        gauge(&mut text, name, help);
        text
    });
    let nothing = HypervisorStatus::default();
    for known in hosts {
        let object = &known.object;
        let name = object.name_any();
        let zone = object.labels().get(labels::ZONE).map(String::as_str);
        let labels = [
            ("hypervisor", name.as_str()),
            ("zone", zone.unwrap_or_default()),
        ];
        let status = object.status.as_ref().unwrap_or(&nothing);
        for (text, (_, _, tell)) in texts.iter_mut().zip(FAMILIES) {
            tell(text, status, labels);
        }
    }
    for text in texts {
        out.push_str(&text);
    }
}

fn evictions_text(out: &mut String, evictions: &[Arc<Eviction>]) {
    let mut family =
        |name: &str, help: &str, one: &dyn Fn(&Eviction) -> Vec<(&'static str, i64)>| {
            gauge(out, name, help);
            for eviction in evictions.iter().filter(|one| !one.spec.dry_run()) {
                let object = eviction.name_any();
                for (state, value) in one(eviction) {
                    let host = eviction.spec.hypervisor.as_str();
                    let mut labels = vec![("eviction", object.as_str()), ("hypervisor", host)];
                    if !state.is_empty() {
                        labels.push(("state", state));
                    }
                    line(out, name, &labels, value);
                }
            }
        };
    family(
        "cobalt_eviction_state",
        "How an eviction is or ended",
        &|eviction| {
            let status = eviction.status.as_ref();
            let outcome = status.and_then(|status| status.outcome);
            let started = status.is_some_and(|status| status.started_at.is_some());
            let state = match outcome {
                Some(outcome) => outcome.as_str(),
                None if started => "Running",
                None => "Waiting",
            };
            vec![(state, 1)]
        },
    );
    family(
        "cobalt_eviction_instances",
        "Instances of an eviction, by state",
        &|eviction| {
            let counts = eviction.status.as_ref().and_then(|status| status.counts);
            counts.map_or_else(Vec::new, |counts| {
                [
                    (InstanceState::Pending, counts.pending),
                    (InstanceState::Blocked, counts.blocked),
                    (InstanceState::Moving, counts.moving),
                    (InstanceState::Moved, counts.moved),
                    (InstanceState::Gone, counts.gone),
                    (InstanceState::Failed, counts.failed),
                    (InstanceState::Cancelled, counts.cancelled),
                ]
                .map(|(state, count)| (state.as_str(), i64::from(count)))
                .to_vec()
            })
        },
    );
    family(
        "cobalt_eviction_last_progress_seconds",
        "When an instance of a running eviction last left, or when it was asked for",
        &|eviction| {
            let status = eviction.status.as_ref();
            if status.is_some_and(|status| status.outcome.is_some()) {
                return Vec::new();
            }
            let rows = status.iter().flat_map(|status| &status.instances);
            let left = rows
                .filter(|row| matches!(row.state, InstanceState::Moved | InstanceState::Gone))
                .filter_map(|row| row.since.as_ref());
            let created = eviction.metadata.creation_timestamp.as_ref();
            let last = left.chain(created).map(|time| time.0.as_second()).max();
            last.map_or_else(Vec::new, |last| vec![("", last)])
        },
    );
}

fn gauge(out: &mut String, name: &str, help: &str) {
    // Writing to a string cannot fail.
    writeln!(out, "# HELP {name} {help}.\n# TYPE {name} gauge").ok();
}

fn line(out: &mut String, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
    out.push_str(name);
    for (number, (key, text)) in labels.iter().enumerate() {
        out.push(if number == 0 { '{' } else { ',' });
        write!(out, "{key}=\"").ok();
        for character in text.chars() {
            match character {
                '\\' | '"' => {
                    out.push('\\');
                    out.push(character);
                }
                '\n' => out.push_str("\\n"),
                _ => out.push(character),
            }
        }
        out.push('"');
    }
    if !labels.is_empty() {
        out.push('}');
    }
    writeln!(out, " {value}").ok();
}
