//! Whole evictions in virtual time: the same `decide`, a fake Nova, and faults. Whatever happens, it
//! comes to an end, keeps its limits, never moves an instance twice at the same time, and says of
//! the host what is so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cobalt_api::eviction::{Eviction, EvictionSpec, InstanceState, Outcome};
use cobalt_api::names::finalizers;
use cobalt_openstack::compute::{ComputeService, Migration, MigrationStatus, Server, ServerStatus};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::json;

use super::budget::{Limits, Room};
use super::decide::{decide, is_held};
use super::seen::{Action, Asked, Policy, Reads, Seen, Source};
use super::signs::{Probe, Record};
use super::witness::{Claim, Claims, Domain, Place, Report};
use crate::fleet::Identity;
use crate::host::Read;

/// What happens to one server.
#[derive(Debug, Clone)]
struct Fate {
    status: &'static str,
    /// Nova is busy with it.
    task: Option<&'static str>,
    /// What it is in ends by itself at that second, and it runs; else never.
    settles_at: Option<i64>,
    /// How long a migration takes, in seconds.
    seconds: i64,
    /// So many migrations fail first.
    failures: u32,
    /// Of so many migrations Nova loses sight first: what drove them was restarted.
    forsaken: u32,
    /// Of so many requests nova-conductor dies with the message, before there is a record.
    lost: u32,
    /// So many migrations nobody drives any more, and the task state of the server stays.
    stuck: u32,
    /// The agent of the host sees its guest running.
    runs: bool,
    /// Nova refuses so many requests first.
    refusals: u32,
    /// Its owner deletes it at that second.
    deleted_at: Option<i64>,
    /// Its QEMU is killed at that second, if it runs. Nova notices 15 s later.
    crashes_at: Option<i64>,
    memory: u64,
}

#[derive(Debug, Clone)]
struct Story {
    fates: Vec<Fate>,
    limits: Limits,
    parallelism: Option<i32>,
    attempts: i32,
    deadline: Option<&'static str>,
    cancel_at: Option<i64>,
    /// The operator dies at these seconds, and forgets all that is not written. The clock of the next
    /// one is so many hours before or after.
    deaths: Vec<(i64, i64)>,
    /// Nova does not answer from here to there.
    silence: Option<(i64, i64)>,
    /// No nova-conductor runs from here to there: requests are taken, and nothing comes of them.
    no_conductor: Option<(i64, i64)>,
    /// How many other hosts take servers.
    targets: usize,
    /// Placement has something of the host for one whom Nova does not know.
    stranger: bool,
    /// The database of the cell does not answer from here to there.
    cell_down: Option<(i64, i64)>,
    /// The host has an agent that lives.
    agent: bool,
    /// Until then libvirt has a domain that neither Nova nor Placement knows.
    ghost_until: Option<i64>,
    /// A server that was resized or migrated off the host before, and waits to be confirmed.
    unconfirmed: Option<Unconfirmed>,
}

#[derive(Debug, Clone)]
struct Unconfirmed {
    kind: &'static str,
    /// Its owner decides then; never if absent.
    decides_at: Option<i64>,
    /// He takes it back.
    reverts: bool,
}

/// Stands in for Nova and for time.
struct FakeNova {
    story: Story,
    now: Timestamp,
    /// How wrong the clock of the operator is. Nova's is right.
    skew: SignedDuration,
    servers: BTreeMap<String, (Server, Fate)>,
    migrations: Vec<Migration>,
    ends: BTreeMap<i64, Timestamp>,
    /// From when on a migration is in Nova's list: its record comes after the answer.
    shows: BTreeMap<i64, Timestamp>,
    /// Servers whose guests have crashed, and when.
    crashed: BTreeMap<String, i64>,
    /// When shelved servers are let go of.
    offloads: BTreeMap<String, Timestamp>,
    /// The most that were under way at the same time.
    most: usize,
    most_to_one: usize,
    /// Requests for a server that was on its way already.
    doubled: usize,
    eviction: Eviction,
    reads: Reads,
    /// Calls under way, with the time at which they are answered.
    calls: Vec<(Timestamp, Action)>,
}

const START: i64 = 1_700_000_000;
const HOST: &str = "source";

fn server(id: &str, fate: &Fate) -> Server {
    serde_json::from_value(json!({
        "id": id, "name": format!("name-{id}"), "status": fate.status,
        "OS-EXT-SRV-ATTR:host": HOST, "OS-EXT-STS:task_state": fate.task,
        "flavor": { "ram": fate.memory, "vcpus": 1 },
    }))
    .unwrap()
}

impl FakeNova {
    fn new(story: Story) -> Self {
        let servers = story.fates.iter().enumerate().map(|(number, fate)| {
            let id = format!("vm-{number:02}");
            (id.clone(), (server(&id, fate), fate.clone()))
        });
        let mut eviction = Eviction::new(
            "source",
            EvictionSpec {
                hypervisor: HOST.to_owned(),
                reason: "a story".to_owned(),
                parallelism: story.parallelism,
                deadline: story.deadline.map(ToOwned::to_owned),
                ..EvictionSpec::default()
            },
        );
        eviction.metadata.uid = Some("uid".to_owned());
        let mut servers: BTreeMap<String, (Server, Fate)> = servers.collect();
        let mut migrations = Vec::new();
        let mut shows = BTreeMap::new();
        if let Some(unconfirmed) = &story.unconfirmed {
            let fate = Fate {
                status: "VERIFY_RESIZE",
                task: None,
                settles_at: None,
                seconds: 1,
                failures: 0,
                forsaken: 0,
                lost: 0,
                stuck: 0,
                runs: true,
                refusals: 0,
                deleted_at: None,
                crashes_at: None,
                memory: 1,
            };
            let mut resized = server("resized", &fate);
            resized.host = Some("target-0".to_owned());
            servers.insert("resized".to_owned(), (resized, fate));
            let old: Migration = serde_json::from_value(json!({
                "id": 1, "uuid": "migration-1", "instance_uuid": "resized",
                "status": "finished", "migration_type": unconfirmed.kind,
                "source_compute": HOST, "dest_compute": "target-0",
            }))
            .unwrap();
            migrations.push(old);
            // It is older than what an eviction looks at.
            shows.insert(1, Timestamp::MAX);
        }
        Self {
            now: Timestamp::from_second(START).unwrap(),
            skew: SignedDuration::ZERO,
            servers,
            migrations,
            ends: BTreeMap::new(),
            shows,
            crashed: BTreeMap::new(),
            offloads: BTreeMap::new(),
            most: 0,
            most_to_one: 0,
            doubled: 0,
            eviction,
            reads: Reads::default(),
            calls: Vec::new(),
            story,
        }
    }

    fn second(&self) -> i64 {
        self.now.as_second() - START
    }

    /// What the operator's clock shows.
    fn clock(&self) -> Timestamp {
        self.now + self.skew
    }

    fn identity() -> Identity {
        let service: ComputeService = serde_json::from_value(json!({
            "id": "service", "binary": "nova-compute", "host": HOST, "zone": "z",
            "status": "disabled", "state": "up",
        }))
        .unwrap();
        Identity {
            host: HOST.to_owned(),
            service: service.into(),
            hypervisor_id: Some("provider".to_owned()),
        }
    }

    fn silent(&self) -> bool {
        let second = self.second();
        self.story
            .silence
            .is_some_and(|(from, to)| from <= second && second < to)
    }

    fn has_conductor(&self) -> bool {
        let second = self.second();
        let outage = self.story.no_conductor;
        outage.is_none_or(|(from, to)| second < from || to <= second)
    }

    fn cell_is_down(&self) -> bool {
        let second = self.second();
        let window = self.story.cell_down;
        window.is_some_and(|(from, to)| from <= second && second < to)
    }

    /// The owner of a resize confirms it or takes it back.
    fn decide_resize(&mut self) {
        let Some(story) = self.story.unconfirmed.clone() else {
            return;
        };
        if story.decides_at.is_none_or(|at| self.second() < at) {
            return;
        }
        self.story.unconfirmed = None;
        let mut all = self.migrations.iter_mut();
        let Some(one) = all.find(|one| one.id == 1 && one.status == MigrationStatus::Finished)
        else {
            return;
        };
        let Some((server, _)) = self.servers.get_mut("resized") else {
            return;
        };
        server.status = ServerStatus::Active;
        one.status = MigrationStatus::Confirmed;
        if story.reverts {
            one.status = MigrationStatus::Reverted;
            server.host = Some(HOST.to_owned());
        }
    }

    /// Guests crash, and some time later Nova notices.
    fn crash(&mut self) {
        let second = self.second();
        for (id, (server, fate)) in &mut self.servers {
            let runs = matches!(
                server.status,
                ServerStatus::Active | ServerStatus::Migrating
            );
            if fate.crashes_at.take_if(|at| *at <= second).is_some() && runs {
                self.crashed.insert(id.clone(), second);
            }
            let noticed = self.crashed.get(id).is_some_and(|at| at + 15 <= second);
            if noticed && server.status == ServerStatus::Active && server.task_state.is_none() {
                server.status = ServerStatus::Shutoff;
            }
        }
    }

    /// What libvirt has on a host.
    fn domains(&self, host: &str) -> BTreeMap<String, Domain> {
        let here = self.servers.iter();
        // After a crash in the middle of a move there is no domain anywhere.
        let here = here.filter(|(_, (one, _))| {
            one.host.as_deref() == Some(host) && (host == HOST || one.status != ServerStatus::Error)
        });
        let ghost = self.story.ghost_until;
        let ghost = ghost.filter(|until| self.second() < *until && host == HOST);
        let domain = |id: &String| Domain {
            runs: !self.crashed.contains_key(id),
            state: "a word".to_owned(),
            crashed: self.crashed.contains_key(id),
        };
        here.map(|(id, _)| id.clone())
            .chain(ghost.map(|_| "ghost".to_owned()))
            .map(|id| (id.clone(), domain(&id)))
            .collect()
    }

    fn report(&self, host: &str) -> Report {
        if self.story.agent {
            Report::Domains(self.domains(host))
        } else {
            Report::Silent("its agent has no heartbeat".to_owned())
        }
    }

    fn claims(&self, consumers: &BTreeSet<String>) -> Claims {
        let down = self.cell_is_down();
        let claim = |id: &String| {
            let place = match self.servers.get(id) {
                Some(_) if down => Place::CellDown,
                found => Place::of(found.map(|(server, _)| server.clone())),
            };
            // A cell that is down has no migrations to show.
            let known: &[Migration] = if down { &[] } else { &self.migrations };
            (id.clone(), Claim::of(id, place, known))
        };
        Claims {
            cell_down: down,
            by: consumers.iter().map(claim).collect(),
        }
    }

    /// What comes to its end by itself.
    fn pass_time(&mut self) {
        self.decide_resize();
        self.crash();
        let due: Vec<i64> = self
            .ends
            .iter()
            .filter(|(_, at)| **at <= self.now)
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.ends.remove(&id);
            let Some(migration) = self.migrations.iter_mut().find(|one| one.id == id) else {
                continue;
            };
            let Some((server, fate)) = self.servers.get_mut(&migration.server) else {
                migration.updated_at = Some(self.now);
                migration.status = MigrationStatus::Error;
                continue;
            };
            if fate.stuck > 0 {
                fate.stuck -= 1;
                continue;
            }
            server.task_state = None;
            if fate.forsaken > 0 {
                // Its record says for ever that it is running.
                fate.forsaken -= 1;
                server.status = ServerStatus::Active;
                continue;
            }
            migration.updated_at = Some(self.now);
            if fate.failures > 0 {
                fate.failures -= 1;
                migration.status = MigrationStatus::Error;
                server.status = ServerStatus::Active;
            } else if migration.kind.as_str() == "migration" {
                migration.status = MigrationStatus::Finished;
                server.host.clone_from(&migration.dest_compute);
            } else {
                migration.status = MigrationStatus::Completed;
                // Nova takes a guest that is not there for one that has moved.
                server.status = if self.crashed.contains_key(&migration.server) {
                    ServerStatus::Error
                } else {
                    ServerStatus::Active
                };
                server.host.clone_from(&migration.dest_compute);
            }
        }
        for (id, at) in &self.offloads {
            if *at <= self.now
                && let Some((server, _)) = self.servers.get_mut(id)
            {
                server.host = None;
                server.status = ServerStatus::ShelvedOffloaded;
                server.task_state = None;
            }
        }
        let second = self.second();
        for (server, fate) in self.servers.values_mut() {
            if fate.settles_at.take_if(|at| *at <= second).is_some() {
                server.status = ServerStatus::Active;
                server.task_state = None;
            }
        }
        self.servers
            .retain(|_, (_, fate)| fate.deleted_at.is_none_or(|at| second < at));
        // Nova aborts the migration of a server that is deleted.
        for one in &mut self.migrations {
            if !self.servers.contains_key(&one.server) && self.ends.remove(&one.id).is_some() {
                one.status = MigrationStatus::Cancelled;
                one.updated_at = Some(self.now);
            }
        }
        let under_way: Vec<&Migration> = self
            .migrations
            .iter()
            .filter(|one| self.ends.contains_key(&one.id))
            .collect();
        self.most = self.most.max(under_way.len());
        let mut to: BTreeMap<&Option<String>, usize> = BTreeMap::new();
        for one in under_way {
            *to.entry(&one.dest_compute).or_default() += 1;
        }
        self.most_to_one = self
            .most_to_one
            .max(to.values().copied().max().unwrap_or(0));
    }

    fn begin(&mut self, action: &Action) {
        if self.calls.iter().any(|(_, other)| other == action) {
            return;
        }
        if let Action::Move { server, .. } = action {
            self.reads.asked.insert(server.clone(), Asked::Waiting);
            self.reads.aborts.remove(server);
            self.reads.repaired.remove(server);
            self.reads.probes.remove(server);
            self.reads.signs.forget(server);
        }
        // The answer takes its time; a list may be longer on its way than a POST.
        let wait = 100 + (self.calls.len() as i64 * 137 + self.second() * 61) % 700;
        self.calls
            .push((self.now + SignedDuration::from_millis(wait), action.clone()));
    }

    fn answer(&mut self, action: &Action) {
        let at = self.clock();
        let changes = matches!(
            action,
            Action::Move { .. } | Action::Confirm { .. } | Action::Abort { .. }
        );
        if self.silent() || (changes && self.cell_is_down()) {
            if let Action::Move { server, .. } = action {
                let text = "503".to_owned();
                self.reads
                    .asked
                    .insert(server.clone(), Asked::Unclear { at, text });
            }
            let count = self
                .reads
                .trouble
                .as_ref()
                .map_or(0, |trouble| trouble.count);
            self.reads.trouble = Some(super::seen::Trouble {
                text: "Nova is away".to_owned(),
                count: count + 1,
                retry_at: at + SignedDuration::from_secs(i64::from(count.min(4)) + 1),
            });
            return;
        }
        self.reads.trouble = None;
        match action {
            Action::Hold => {
                let all = self.eviction.metadata.finalizers.get_or_insert_default();
                all.push(finalizers::EVICTION_IN_FLIGHT.to_owned());
            }
            Action::Release => self.eviction.metadata.finalizers = None,
            Action::ReadServers { .. } => {
                let here = self.servers.values().map(|(server, _)| server.clone());
                let here: Vec<Server> = here
                    .filter(|one| one.host.as_deref() == Some(HOST) && !self.cell_is_down())
                    .collect();
                self.reads.listed(at, here);
            }
            Action::ReadMigrations { .. } => {
                let all = self.migrations.iter().rev();
                let shown = all.filter(|one| {
                    self.shows.get(&one.id).is_none_or(|from| *from <= self.now)
                        && !self.cell_is_down()
                });
                let value: Vec<Migration> = shown.cloned().collect();
                self.reads.signs.listed(&value, at);
                self.reads.migrations = Some(Read { at, value });
            }
            Action::ReadTargets { .. } => {
                let hosts: Vec<String> = (0..self.story.targets)
                    .map(|number| format!("target-{number}"))
                    .collect();
                let all = self
                    .servers
                    .keys()
                    .map(|id| (id.clone(), hosts.clone()))
                    .collect();
                let holders = self.holders();
                self.reads.meet(&self.eviction, holders);
                self.reads.targets = Some(Read { at, value: Ok(all) });
            }
            Action::ReadHolders { .. } => {
                let value = self.holders();
                self.reads.holders = Some(Read { at, value });
            }
            Action::ReadService { .. } => self.reads.enabled = Some(Read { at, value: false }),
            Action::ReadReason { request, .. } => {
                let text = Some("No valid host was found".to_owned());
                self.reads.reasons.insert(request.clone(), text);
            }
            Action::ReadServer { server } => {
                let value = match self.servers.get(server) {
                    Some(_) if self.cell_is_down() => Place::CellDown,
                    found => Place::of(found.map(|(server, _)| server.clone())),
                };
                self.reads
                    .elsewhere
                    .insert(server.clone(), Read { at, value });
            }
            Action::ReadClaims { consumers, .. } => {
                let value = self.claims(consumers);
                self.reads.claims = Some(Read { at, value });
            }
            Action::ReadDomains => {
                let value = self.report(HOST);
                self.reads.libvirt = Some(Read { at, value });
            }
            Action::ReadArrivals { host } => {
                let value = self.report(host);
                self.reads.agents.insert(host.clone(), Read { at, value });
            }
            Action::ReadErrors => {
                let all = self.servers.iter();
                let all = all.filter(|(_, (one, _))| one.status == ServerStatus::Error);
                let value = if self.cell_is_down() {
                    BTreeMap::new()
                } else {
                    all.map(|(id, _)| (id.clone(), String::new())).collect()
                };
                self.reads.errors = Some(Read { at, value });
            }
            Action::ReadRunning => {
                let here = self.servers.values();
                let here =
                    here.filter(|(one, fate)| fate.runs && one.host.as_deref() == Some(HOST));
                let value = here.map(|(one, _)| one.id.clone()).collect();
                self.reads.running = Some(Read { at, value });
            }
            Action::ReadStuck { server } => {
                let mut all = self.migrations.iter().rev();
                let open = all.find(|one| one.server == *server && !one.status.has_ended());
                let probe = Probe {
                    migration: open.map(Record::from),
                    conductor: self.has_conductor(),
                };
                self.reads.signs.probed(server, probe.migration.clone(), at);
                if !probe.conductor {
                    self.reads.signs.hold(server, at);
                }
                let read = Read { at, value: probe };
                self.reads.probes.insert(server.clone(), read);
            }
            Action::Repair { server } => {
                if let Some((one, _)) = self.servers.get_mut(server) {
                    one.task_state = None;
                    one.status = ServerStatus::Active;
                }
                self.reads.repaired.insert(server.clone(), at);
                self.reads.servers = None;
            }
            Action::Move {
                server,
                method,
                target,
            } => {
                let asked = self.migrate(server, *method, target.as_deref());
                self.reads.asked.insert(server.clone(), asked);
            }
            Action::Confirm { server } => {
                let mut all = self.migrations.iter_mut().rev();
                if let Some(one) =
                    all.find(|one| one.server == *server && one.status == MigrationStatus::Finished)
                {
                    one.status = MigrationStatus::Confirmed;
                    if let Some((server, _)) = self.servers.get_mut(server) {
                        server.status = match server.id.as_str() {
                            "resized" => ServerStatus::Active,
                            _ => ServerStatus::Shutoff,
                        };
                    }
                }
                self.reads.migrations = None;
                (self.reads.holders, self.reads.claims) = (None, None);
            }
            Action::Abort { server, migration } => {
                if self.ends.remove(migration).is_some() {
                    if let Some(one) = self.migrations.iter_mut().find(|one| one.id == *migration) {
                        one.status = MigrationStatus::Cancelled;
                    }
                    if let Some((one, _)) = self.servers.get_mut(server) {
                        one.task_state = None;
                        one.status = ServerStatus::Active;
                    }
                }
                self.reads
                    .aborts
                    .insert(server.clone(), Read { at, value: None });
                self.reads.news = Some(at);
            }
            Action::ReadTransfer { .. } | Action::ForceComplete { .. } => {}
        }
    }

    /// Who holds something of the host: its servers, or the migrations that they are in.
    fn holders(&self) -> BTreeSet<String> {
        let underway = |id: &str| {
            let mut all = self.migrations.iter();
            all.find(|one| one.server == id && self.ends.contains_key(&one.id))
        };
        let here = self.servers.iter();
        let unconfirmed = self.migrations.iter();
        let unconfirmed = unconfirmed.filter(|one| one.status == MigrationStatus::Finished);
        here.filter(|(_, (one, _))| one.host.as_deref() == Some(HOST))
            .map(|(id, _)| {
                let migration = underway(id).map(|one| format!("migration-{}", one.id));
                migration.unwrap_or_else(|| id.clone())
            })
            .chain(unconfirmed.map(|one| format!("migration-{}", one.id)))
            .chain(self.story.stranger.then(|| "stranger".to_owned()))
            .collect()
    }

    fn migrate(
        &mut self,
        id: &str,
        method: super::seen::MoveMethod,
        target: Option<&str>,
    ) -> Asked {
        let busy = self
            .migrations
            .iter()
            .any(|one| one.server == id && self.ends.contains_key(&one.id));
        if busy {
            self.doubled += 1;
            return Asked::Refused("409: it is on its way".to_owned());
        }
        let (has_conductor, clock) = (self.has_conductor(), self.clock());
        let Some((server, fate)) = self.servers.get_mut(id) else {
            return Asked::Refused("404".to_owned());
        };
        if server.task_state.as_deref() == Some("migrating") {
            return Asked::Refused("409: it is migrating".to_owned());
        }
        assert_eq!(server.host.as_deref(), Some(HOST), "it has left already");
        if fate.refusals > 0 {
            fate.refusals -= 1;
            return Asked::Refused("400: not so".to_owned());
        }
        if method == super::seen::MoveMethod::Offload {
            server.task_state = Some("shelving_offloading".to_owned());
            let at = self.now + SignedDuration::from_secs(fate.seconds);
            self.offloads.insert(id.to_owned(), at);
            return Asked::Accepted {
                at: clock,
                request_id: Some(format!("req-{id}")),
            };
        }
        if !has_conductor || fate.lost > 0 {
            fate.lost = fate.lost.saturating_sub(1);
            server.task_state = Some("migrating".to_owned());
            if method == super::seen::MoveMethod::Live {
                server.status = ServerStatus::Migrating;
            }
            return Asked::Accepted {
                at: clock,
                request_id: Some(format!("req-lost-{id}")),
            };
        }
        let number = i64::try_from(self.migrations.len()).unwrap() + 1;
        let live = method == super::seen::MoveMethod::Live;
        server.task_state = Some("migrating".to_owned());
        if live {
            server.status = ServerStatus::Migrating;
        }
        let dest = target.map_or_else(
            || {
                format!(
                    "target-{}",
                    number % i64::try_from(self.story.targets.max(1)).unwrap()
                )
            },
            ToOwned::to_owned,
        );
        let migration = serde_json::from_value(json!({
            "id": number, "uuid": format!("migration-{number}"), "instance_uuid": id,
            "status": "running",
            "migration_type": if live { "live-migration" } else { "migration" },
            "source_compute": HOST, "dest_compute": dest,
        }))
        .unwrap();
        self.migrations.push(migration);
        let lag = SignedDuration::from_millis(number * 617 % 1500);
        let end = self.now + SignedDuration::from_secs(fate.seconds);
        // The record is there before anything has moved.
        self.shows.insert(number, end.min(self.now + lag));
        self.ends.insert(number, end);
        Asked::Accepted {
            at: clock,
            request_id: Some(format!("req-{number}")),
        }
    }

    /// Until it is over, or for ten hours. Whether it is.
    fn play(&mut self) -> bool {
        let policy = Arc::new(Policy {
            limits: self.story.limits,
            attempts: self.story.attempts,
            patience: SignedDuration::from_secs(60),
            instance_deadline: SignedDuration::from_secs(600),
            stuck_patience: SignedDuration::from_secs(90),
            ..Policy::default()
        });
        let deaths = std::mem::take(&mut self.story.deaths);
        let mut deaths = deaths.into_iter().peekable();
        let end = self.now + SignedDuration::from_hours(10);
        for _ in 0..50_000 {
            if self.now >= end {
                return false;
            }
            self.pass_time();
            if self.story.cancel_at.is_some_and(|at| at <= self.second()) {
                self.eviction.spec.cancel = Some(true);
            }
            let death = deaths.next_if(|(at, _)| *at <= self.second());
            if let Some((_, hours)) = death {
                // Some of the calls have reached Nova, and nobody hears the answer.
                let calls = std::mem::take(&mut self.calls);
                for (number, (_, call)) in calls.into_iter().enumerate() {
                    if number % 2 == 0 {
                        self.answer(&call);
                    }
                }
                self.skew += SignedDuration::from_hours(hours);
                self.reads = Reads::default();
            }
            self.reads.watched_since.get_or_insert(self.now + self.skew);
            let due: Vec<Action> = {
                let now = self.now;
                let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.calls)
                    .into_iter()
                    .partition(|(at, _)| *at <= now);
                self.calls = later;
                due.into_iter().map(|(_, action)| action).collect()
            };
            for action in &due {
                self.answer(action);
            }
            let seen = Seen {
                eviction: Arc::new(self.eviction.clone()),
                source: Source {
                    exists: true,
                    identity: Ok(Some(Self::identity())),
                    was_registered: true,
                },
                reads: self.reads.clone(),
                taken: BTreeMap::new(),
                room: Room::free(self.story.limits),
                policy: Arc::clone(&policy),
            };
            let decision = decide(&seen, self.clock());
            assert!(
                decision.wake.is_none_or(|wake| wake > self.clock())
                    || decision.status.outcome.is_some(),
                "it would turn without a pause: {:#?}",
                decision.status
            );
            let quiet = self.eviction.status.as_ref() == Some(&decision.status)
                && decision.actions.is_empty();
            self.eviction.status = Some(decision.status);
            for action in &decision.actions {
                self.begin(action);
            }
            let over = self
                .eviction
                .status
                .as_ref()
                .is_some_and(|status| status.outcome.is_some());
            if over && !is_held(&self.eviction) && self.calls.is_empty() {
                return true;
            }
            // The next thing that happens, by itself or because it was asked for.
            let mut next = self.now + SignedDuration::from_secs(1);
            if quiet && self.calls.is_empty() && self.ends.is_empty() {
                let wake = decision.wake.map(|wake| wake - self.skew);
                next = wake
                    .unwrap_or(next)
                    .max(self.now + SignedDuration::from_millis(50));
                assert!(
                    decision.wake.is_some() || over,
                    "it waits, and nobody wakes it: {:#?}",
                    self.eviction.status
                );
            }
            if let Some(call) = self.calls.iter().map(|(at, _)| *at).min() {
                next = next.min(call);
            }
            self.now = next.max(self.now + SignedDuration::from_millis(10));
        }
        false
    }
}

fn fate() -> impl Strategy<Value = Fate> {
    let status = prop::sample::select(vec![
        ("ACTIVE", None),
        ("ACTIVE", None),
        ("ACTIVE", None),
        ("ACTIVE", None),
        ("PAUSED", None),
        ("SHUTOFF", None),
        ("SHELVED", None),
        ("SUSPENDED", None),
        ("RESCUE", None),
        ("ERROR", None),
        ("BUILD", Some("spawning")),
        ("RESIZE", Some("resize_migrating")),
        ("VERIFY_RESIZE", None),
        ("ACTIVE", Some("deleting")),
    ]);
    let end = prop::option::weighted(0.5, 0_i64..120);
    (
        (status, end),
        0_i64..40,
        prop::sample::select(vec![
            (0_u32, 0_u32),
            (0, 0),
            (0, 0),
            (1, 0),
            (2, 0),
            (9, 0),
            (0, 1),
        ]),
        (
            prop::sample::select(vec![0_u32, 0, 0, 1]),
            prop::sample::select(vec![
                (0_u32, 0_u32),
                (0, 0),
                (0, 0),
                (1, 0),
                (0, 1),
                (9, 0),
                (0, 9),
            ]),
            prop::bool::weighted(0.7),
        ),
        prop::option::weighted(0.1, 0_i64..60),
        (prop::option::weighted(0.15, 0_i64..60), 1_u64..4096),
    )
        .prop_map(
            |(
                ((status, task), end),
                seconds,
                (failures, forsaken),
                (refusals, (lost, stuck), runs),
                deleted_at,
                (crashes_at, memory),
            )| {
                let passes = task.is_some() || status == "VERIFY_RESIZE";
                Fate {
                    status,
                    task,
                    settles_at: end.filter(|_| passes),
                    seconds,
                    failures,
                    forsaken,
                    lost,
                    stuck,
                    runs,
                    refusals,
                    deleted_at,
                    crashes_at,
                    memory,
                }
            },
        )
}

fn story() -> impl Strategy<Value = Story> {
    (
        prop::collection::vec(fate(), 0..10),
        (1_usize..5, 1_usize..5, 1_usize..5, 1_usize..5),
        prop::option::of(1_i32..6),
        1_i32..4,
        prop::option::weighted(0.15, prop::sample::select(vec!["10s", "1m"])),
        prop::option::weighted(0.2, 0_i64..60),
        prop::collection::vec(
            (0_i64..120, prop::sample::select(vec![0_i64, 0, -5, 5])),
            0..5,
        ),
        prop::option::weighted(0.2, (0_i64..30, 31_i64..90)),
        (
            (1_usize..4, any::<bool>(), any::<bool>()),
            prop::option::weighted(0.2, (0_i64..30, 31_i64..900)),
            prop::option::weighted(0.3, (0_i64..60, 1_i64..90)),
            prop::option::weighted(0.15, prop::sample::select(vec![3_i64, 40, 100_000])),
            prop::option::weighted(0.3, unconfirmed()),
        ),
    )
        .prop_map(
            |(
                fates,
                limits,
                parallelism,
                attempts,
                deadline,
                cancel_at,
                mut deaths,
                silence,
                ((targets, stranger, agent), no_conductor, cell_down, ghost_until, unconfirmed),
            )| {
                deaths.sort_unstable();
                let (source, target, zone, cluster) = limits;
                Story {
                    fates,
                    limits: Limits {
                        source,
                        target,
                        zone,
                        cluster,
                    },
                    parallelism,
                    attempts,
                    deadline,
                    cancel_at,
                    deaths,
                    silence,
                    no_conductor,
                    targets,
                    stranger,
                    cell_down: cell_down.map(|(from, long)| (from, from + long)),
                    agent,
                    ghost_until,
                    unconfirmed,
                }
            },
        )
}

fn unconfirmed() -> impl Strategy<Value = Unconfirmed> {
    (
        prop::sample::select(vec!["resize", "migration"]),
        prop::option::weighted(0.7, 0_i64..120),
        any::<bool>(),
    )
        .prop_map(|(kind, decides_at, reverts)| Unconfirmed {
            kind,
            decides_at,
            reverts,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn every_story_has_an_end(story in story()) {
        let told = story.clone();
        let mut nova = FakeNova::new(story);
        let over = nova.play();
        let status = nova.eviction.status.clone().unwrap_or_default();
        prop_assert!(over, "no end: {status:#?}");

        // Limits.
        let limit = [told.limits.source, told.limits.zone, told.limits.cluster]
            .into_iter()
            .chain(told.parallelism.and_then(|most| usize::try_from(most).ok()))
            .min()
            .unwrap_or(0);
        prop_assert!(nova.most <= limit, "{} under way, {limit} allowed", nova.most);
        prop_assert!(nova.most_to_one <= told.limits.target);
        // Only one who died may ask again for what is under way.
        if told.deaths.is_empty() && told.silence.is_none() && told.cell_down.is_none() {
            prop_assert_eq!(nova.doubled, 0);
        }

        // What is said is so.
        let here: Vec<&String> = nova
            .servers
            .iter()
            .filter(|(_, (server, _))| server.host.as_deref() == Some(HOST))
            .map(|(id, _)| id)
            .collect();
        prop_assert!(nova.ends.is_empty(), "something is still under way: {status:#?}");
        let outcome = status.outcome.unwrap();
        if outcome == Outcome::Succeeded {
            prop_assert!(here.is_empty(), "{here:?} {status:#?}");
            let mut left = nova.migrations.iter();
            let left = left.any(|one| one.status == MigrationStatus::Finished && nova.servers.contains_key(&one.server));
            prop_assert!(!left, "a cold migration waits to be confirmed: {:#?}", nova.migrations);
            let ended = status.finished_at.as_ref().unwrap().0.as_second() - START;
            if told.agent {
                prop_assert!(told.ghost_until.is_none_or(|until| until <= ended + 1), "{status:#?}");
            }
        }
        for row in &status.instances {
            prop_assert!(!matches!(row.state, InstanceState::Pending | InstanceState::Moving | InstanceState::Blocked));
            let is_here = here.contains(&&row.id);
            let said_away = matches!(row.state, InstanceState::Moved | InstanceState::Gone);
            // One that its owner deletes may be gone since it was looked at.
            if is_here {
                prop_assert!(!said_away, "{row:?}");
            }
            if let Some((server, _)) = nova.servers.get(&row.id)
                && row.state == InstanceState::Moved
                && outcome == Outcome::Succeeded
            {
                prop_assert_ne!(&server.status, &ServerStatus::Error, "{:?}", row);
            }
            prop_assert!(row.attempt.unwrap_or(0) <= told.attempts, "{row:?}");
        }
        match outcome {
            Outcome::Cancelled => prop_assert!(told.cancel_at.is_some()),
            Outcome::TimedOut => prop_assert!(told.deadline.is_some()),
            Outcome::Succeeded | Outcome::PartiallyFailed | Outcome::Failed => {}
        }
    }

    #[test]
    fn one_that_cannot_move_holds_up_nobody(mut fates in prop::collection::vec(fate(), 1..8), stuck in 0_usize..8) {
        for fate in &mut fates {
            fate.status = "ACTIVE";
            fate.task = None;
            fate.settles_at = None;
            fate.failures = 0;
            fate.forsaken = 0;
            fate.lost = 0;
            fate.stuck = 0;
            fate.refusals = 0;
            fate.deleted_at = None;
            fate.crashes_at = None;
        }
        let stuck = stuck % fates.len();
        fates[stuck].failures = 99;
        let count = fates.len();
        let mut nova = FakeNova::new(Story {
            fates,
            limits: Limits { source: 2, target: 4, zone: 8, cluster: 8 },
            parallelism: None,
            attempts: 3,
            deadline: None,
            cancel_at: None,
            deaths: Vec::new(),
            silence: None,
            no_conductor: None,
            targets: 2,
            stranger: false,
            cell_down: None,
            agent: true,
            ghost_until: None,
            unconfirmed: None,
        });
        prop_assert!(nova.play());
        let status = nova.eviction.status.clone().unwrap();
        let counts = status.counts.unwrap();
        prop_assert_eq!(usize::try_from(counts.moved).unwrap(), count - 1, "{:#?}", status);
        prop_assert_eq!(counts.failed, 1);
        let outcome = if count == 1 { Outcome::Failed } else { Outcome::PartiallyFailed };
        prop_assert_eq!(status.outcome, Some(outcome));
    }

    /// Whatever the clock of the next process shows, an attempt that goes on is not given up, and no
    /// deadline of the eviction passes early.
    #[test]
    fn a_clock_that_was_set_between_two_processes_burns_no_attempt(
        mut fates in prop::collection::vec(fate(), 1..6),
        deaths in prop::collection::vec((0_i64..60, -9_i64..10), 1..4),
    ) {
        for fate in &mut fates {
            fate.status = "ACTIVE";
            (fate.task, fate.settles_at, fate.deleted_at) = (None, None, None);
            (fate.failures, fate.forsaken, fate.refusals) = (0, 0, 0);
            (fate.lost, fate.stuck, fate.crashes_at) = (0, 0, None);
        }
        let mut deaths = deaths;
        deaths.sort_unstable();
        let mut nova = FakeNova::new(Story {
            fates,
            limits: Limits { source: 2, target: 4, zone: 8, cluster: 8 },
            parallelism: None,
            attempts: 3,
            deadline: Some("1h"),
            cancel_at: None,
            deaths,
            silence: None,
            no_conductor: None,
            targets: 2,
            stranger: false,
            cell_down: None,
            agent: true,
            ghost_until: None,
            unconfirmed: None,
        });
        prop_assert!(nova.play(), "{:#?}", nova.eviction.status);
        let status = nova.eviction.status.clone().unwrap();
        prop_assert_eq!(status.outcome, Some(Outcome::Succeeded), "{:#?}", status);
        // One who has died may ask again for what is under way, which Nova refuses.
        let again: i32 = status.instances.iter().map(|row| row.attempt.unwrap_or(1) - 1).sum();
        prop_assert!(usize::try_from(again).unwrap() <= nova.doubled, "{:#?}", status);
        prop_assert!(nova.second() < 900, "it took {} s", nova.second());
    }
}

#[test]
fn a_request_that_was_repeated_after_a_silence_is_not_forsaken_at_once() {
    let fate = |seconds, memory| Fate {
        status: "ACTIVE",
        task: None,
        settles_at: None,
        seconds,
        failures: 0,
        forsaken: 0,
        lost: 0,
        stuck: 0,
        runs: true,
        refusals: 0,
        deleted_at: None,
        crashes_at: None,
        memory,
    };
    let mut nova = FakeNova::new(Story {
        fates: vec![fate(27, 2461), fate(9, 1)],
        limits: Limits {
            source: 1,
            target: 2,
            zone: 1,
            cluster: 1,
        },
        parallelism: None,
        attempts: 1,
        deadline: None,
        cancel_at: None,
        deaths: Vec::new(),
        silence: Some((11, 70)),
        no_conductor: None,
        targets: 1,
        stranger: false,
        cell_down: None,
        agent: false,
        ghost_until: None,
        unconfirmed: Some(Unconfirmed {
            kind: "resize",
            decides_at: Some(11),
            reverts: true,
        }),
    });
    assert!(nova.play());
    assert_eq!(nova.most, 1, "{:#?}", nova.migrations);
}
