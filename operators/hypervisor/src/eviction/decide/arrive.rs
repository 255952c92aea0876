//! Whether those that have left run where they are now. Nova takes a live migration whose guest is gone
//! from the source for completed: only the libvirt of the target, or the server's own state, shows
//! that it runs nowhere.

use std::collections::BTreeSet;

use cobalt_api::eviction::{EvictionInstance, InstanceState as State, Method};
use cobalt_openstack::compute::ServerStatus;
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::agree::SILENT_FOR;
use super::{Turn, label};
use crate::eviction::seen::Action;
use crate::eviction::witness::{Place, Report};

/// The agent of a target tells this late at most that a guest runs there.
const SHOWS: SignedDuration = SignedDuration::from_secs(60);
/// How often it is asked again.
const AGENT_AGAIN: SignedDuration = SignedDuration::from_secs(1);
/// How often Nova is asked about one that is not seen.
const NOVA_AGAIN: SignedDuration = SignedDuration::from_secs(10);
/// How the error of a row begins that Nova has moved and nobody has seen on its target yet.
const ARRIVING: &str = "not seen yet on its target";

/// Whether one runs where Nova says that it is.
pub(super) enum Arrival {
    /// It does, or nobody but Nova can be asked.
    Seen,
    /// It is looked for.
    NotYet,
    /// It does not.
    Lost(String),
}

/// Whether a row's migration is over, and only its guest is looked for.
pub(super) fn is_arriving(row: &EvictionInstance) -> bool {
    let error = row.error.as_deref();
    row.state == State::Moving && error.is_some_and(|error| error.starts_with(ARRIVING))
}

/// What is said of a server that Nova has in ERROR on another host.
pub(super) fn in_error(host: &str, fault: Option<&str>) -> String {
    let fault = fault.filter(|fault| !fault.is_empty());
    let fault = fault.map(|fault| format!(" ({fault})")).unwrap_or_default();
    format!(
        "it has left the host and is in ERROR on {host}{fault}: see whether its guest runs there"
    )
}

impl Turn<'_> {
    /// Whether a row that Nova has moved runs on its target.
    pub(super) fn arrival(&mut self, row: &mut EvictionInstance) -> Arrival {
        let live = row.state == State::Moving && row.method == Some(Method::Live);
        let Some(to) = row.to.clone().filter(|_| live) else {
            return Arrival::Seen;
        };
        let reads = &self.seen.reads;
        let told = reads.migrations.as_ref().map(|read| read.at);
        let report = reads.agents.get(&to);
        let report = report.filter(|read| match &read.value {
            Report::Silent(_) => self.now.duration_since(read.at) < SILENT_FOR,
            // Before the end of the migration the target has a domain, too.
            Report::Domains(_) => Some(read.at) >= told,
        });
        let Some(report) = report else {
            self.arriving(row, &to, "its agent is asked");
            self.actions.insert(Action::ReadArrivals { host: to });
            return Arrival::NotYet;
        };
        let domain = match report.value.domain(&row.id) {
            None => return Arrival::Seen,
            Some(Some(domain)) if domain.runs => return Arrival::Seen,
            Some(domain) => domain.cloned(),
        };
        let said = match &domain {
            Some(domain) => format!("libvirt has it there as {}", domain.state),
            None => "libvirt does not have it there".to_owned(),
        };
        if report.at + AGENT_AGAIN <= self.now {
            self.actions
                .insert(Action::ReadArrivals { host: to.clone() });
        }
        let crashed = domain.is_some_and(|domain| domain.crashed);
        let place = reads.elsewhere.get(&row.id);
        let place = place.filter(|read| self.now.duration_since(read.at) < NOVA_AGAIN);
        match place.map(|read| &read.value) {
            Some(Place::Gone) => return Arrival::Seen,
            Some(Place::On {
                host,
                status: ServerStatus::Error,
                fault,
                ..
            }) if *host == to => return Arrival::Lost(in_error(&to, fault.as_deref())),
            // Its owner has stopped it since.
            Some(Place::On {
                host,
                status: ServerStatus::Shutoff | ServerStatus::Suspended,
                busy: false,
                ..
            }) if *host == to && !crashed => return Arrival::Seen,
            Some(_) => {}
            None => {
                let server = row.id.clone();
                self.actions.insert(Action::ReadServer { server });
            }
        }
        self.arriving(row, &to, &said);
        let late = row.deadline.as_ref().is_some_and(|end| end.0 <= self.now);
        if late && place.is_some() {
            return Arrival::Lost(format!(
                "Nova has moved it to {to}, where it does not run: {said}"
            ));
        }
        self.wake_in(AGENT_AGAIN);
        Arrival::NotYet
    }

    /// Marks a row whose migration is over.
    fn arriving(&mut self, row: &mut EvictionInstance, to: &str, said: &str) {
        if !is_arriving(row) {
            row.deadline = Some(Time(self.second() + SHOWS));
        }
        row.error = Some(format!("{ARRIVING} {to}: {said}"));
    }

    /// Whether all that have moved are known not to be in ERROR: by the agents of their targets, or
    /// else by one look at Nova for all of them. Those that are have failed.
    pub(super) fn have_arrived(&mut self) -> bool {
        let seen = self.seen;
        let runs = |row: &EvictionInstance| {
            let to = row.to.as_ref().and_then(|to| seen.reads.agents.get(to));
            let domain = to.and_then(|read| read.value.domain(&row.id)).flatten();
            domain.is_some_and(|domain| domain.runs)
        };
        let unseen: BTreeSet<String> = self
            .status
            .instances
            .iter()
            .filter(|row| row.state == State::Moved && row.migration_id.is_some() && !runs(row))
            .map(|row| row.id.clone())
            .collect();
        if unseen.is_empty() {
            return true;
        }
        let listed = seen.reads.servers.as_ref().map(|read| read.at);
        let errors = seen.reads.errors.as_ref();
        let Some(errors) = errors.filter(|read| Some(read.at) > listed) else {
            self.actions.insert(Action::ReadErrors);
            return false;
        };
        let mut rows = std::mem::take(&mut self.status.instances);
        for row in rows.iter_mut().filter(|row| unseen.contains(&row.id)) {
            if let Some(fault) = errors.value.get(&row.id) {
                let to = row.to.clone().unwrap_or_else(|| label(row));
                self.lose(row, in_error(&to, Some(fault)));
            }
        }
        self.status.instances = rows;
        true
    }
}
