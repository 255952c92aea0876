//! Which hosts could take a server, and why the others do not.

use std::collections::{BTreeMap, BTreeSet};

use cobalt_openstack::compute::{ServiceState, ServiceStatus};

use super::seen::Group;
use crate::fleet::Fleet;

/// The hosts that a server could go to. Counts are hosts of the server's zone, without its own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// Those that could take it.
    pub hosts: Vec<String>,
    /// They are of other zones, because its own has none. Nova moves it there only if it is not bound
    /// to its zone, which its API does not tell.
    pub of_other_zones: bool,
    /// All.
    pub others: usize,
    /// Disabled, in maintenance, or being drained.
    pub closed: usize,
    /// nova-compute does not report.
    pub down: usize,
    /// Placement has no room for it there.
    pub full: usize,
    /// A member of its anti-affinity group is there.
    pub apart: usize,
}

impl Survey {
    /// `roots` are the providers with room, `leaving` the hosts that are in maintenance or being
    /// drained, as Nova calls them.
    #[must_use]
    pub fn new(
        fleet: &Fleet,
        provider: Option<&str>,
        roots: &BTreeSet<&str>,
        leaving: &BTreeSet<String>,
    ) -> Self {
        let has = |host: &str, wanted: &dyn Fn(&str) -> bool| {
            let all = fleet.hypervisors.get(host);
            all.is_some_and(|all| all.iter().any(|one| wanted(&one.id)))
        };
        let is_source = |host: &str| has(host, &|id| Some(id) == provider);
        let mut hosts = fleet.services.keys();
        let source = hosts.find(|host| is_source(host));
        let near = source.and_then(|source| zone(fleet, source));
        let mut survey = Self::default();
        let mut elsewhere = Vec::new();
        for (host, service) in &fleet.services {
            if source == Some(host) {
                continue;
            }
            let is_near = zone(fleet, host) == near;
            let closed = service.status != ServiceStatus::Enabled || leaving.contains(&**host);
            let down = service.state != ServiceState::Up;
            let full = !has(host, &|id| roots.contains(id));
            survey.others += usize::from(is_near);
            if !(closed || down || full) {
                let hosts = if is_near {
                    &mut survey.hosts
                } else {
                    &mut elsewhere
                };
                hosts.push(host.to_string());
            } else if is_near {
                survey.closed += usize::from(closed);
                survey.down += usize::from(!closed && down);
                survey.full += usize::from(!closed && !down);
            }
        }
        if survey.hosts.is_empty() {
            survey.of_other_zones = !elsewhere.is_empty();
            survey.hosts = elsewhere;
        }
        survey
    }

    /// Takes out hosts that have a member of its anti-affinity group.
    pub fn keep_apart(&mut self, taken: &BTreeSet<String>) {
        let before = self.hosts.len();
        self.hosts.retain(|host| !taken.contains(host));
        if !self.of_other_zones {
            self.apart += before - self.hosts.len();
        }
    }

    /// Why no host takes it, and what to do.
    #[must_use]
    pub fn why_none(&self) -> String {
        if self.others == 0 {
            return "its zone has no other host: add one".to_owned();
        }
        let all = [
            (self.closed, "disabled, in maintenance or being drained"),
            (self.down, "down"),
            (self.full, "without room for it"),
            (self.apart, "taken by another member of its server group"),
        ];
        let all: Vec<String> = all
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        let help = if self.full >= self.closed + self.down + self.apart {
            "make room there, or add a host"
        } else if self.apart >= self.closed + self.down {
            "move a member of the group, or add a host"
        } else if self.closed >= self.down {
            "put one of them back into service, or add a host"
        } else {
            "bring one of them back, or add a host"
        };
        format!(
            "of the {} other hosts of its zone, {}: {help}",
            self.others,
            all.join(", ")
        )
    }
}

fn zone<'a>(fleet: &'a Fleet, host: &'a str) -> Option<&'a str> {
    let mut aggregates = fleet.aggregates_of(host);
    aggregates.find_map(|one| one.availability_zone.as_deref())
}

/// Members of a server's anti-affinity groups whose hosts have to be known, because they could be on
/// every host that has room: where there are more hosts than such members, one is free in any case.
#[must_use]
pub fn members_to_find<'a>(
    server: &str,
    groups: &'a [Group],
    here: &BTreeSet<&str>,
    survey: &Survey,
) -> Vec<&'a str> {
    let own = |group: &&Group| !group.together && group.members.contains(server);
    let mut all = Vec::new();
    for group in groups.iter().filter(own) {
        let members = group.members.iter().map(String::as_str);
        let others: Vec<&str> = members.filter(|one| !here.contains(one)).collect();
        if others.len() / group.most.max(1) >= survey.hosts.len() {
            all.extend(others);
        }
    }
    all
}

/// Hosts that the anti-affinity groups of a server leave no place on. `found` says where members are.
#[must_use]
pub fn hosts_taken(
    server: &str,
    groups: &[Group],
    found: &BTreeMap<String, String>,
) -> BTreeSet<String> {
    let own = |group: &&Group| !group.together && group.members.contains(server);
    let mut taken = BTreeSet::new();
    for group in groups.iter().filter(own) {
        let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
        for member in group.members.iter().filter(|one| *one != server) {
            if let Some(host) = found.get(member) {
                *counts.entry(host).or_default() += 1;
            }
        }
        let full = counts.iter().filter(|(_, count)| **count >= group.most);
        taken.extend(full.map(|(host, _)| (*host).clone()));
    }
    taken
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cobalt_openstack::compute::{Aggregate, ComputeService};
    use serde_json::json;

    use super::*;
    use crate::fleet::NovaHypervisor;

    /// Hosts with zone, status and state; the provider of each is named like it.
    fn fleet(hosts: &[(&str, &str, &str, &str)]) -> Fleet {
        let mut fleet = Fleet::default();
        for (host, zone, status, state) in hosts {
            let name: Arc<str> = (*host).into();
            let service: ComputeService = serde_json::from_value(json!({
                "id": host, "binary": "nova-compute", "host": host,
                "status": status, "state": state,
            }))
            .unwrap();
            fleet.services.insert(Arc::clone(&name), service.into());
            let hypervisor = NovaHypervisor {
                id: Arc::clone(&name),
                hostname: Arc::clone(&name),
            };
            fleet
                .hypervisors
                .insert(Arc::clone(&name), vec![hypervisor]);
            let aggregate: Aggregate = serde_json::from_value(json!({
                "id": 1, "uuid": zone, "name": zone, "availability_zone": zone, "hosts": [],
            }))
            .unwrap();
            let known = fleet.aggregates.entry((*zone).to_owned());
            known.or_insert_with(|| aggregate.into()).hosts.insert(name);
        }
        fleet
    }

    #[test]
    fn the_reason_why_no_host_takes_it_is_the_real_one() {
        let fleet = fleet(&[
            ("hv1", "a", "disabled", "up"),
            ("hv2", "a", "disabled", "up"),
            ("hv3", "a", "enabled", "down"),
            ("hv4", "a", "enabled", "up"),
            ("hv5", "a", "enabled", "up"),
            ("hv6", "a", "enabled", "up"),
        ]);
        let roots = BTreeSet::from(["hv1", "hv2", "hv3", "hv5", "hv6"]);
        let leaving = BTreeSet::from(["hv5".to_owned()]);
        let mut survey = Survey::new(&fleet, Some("hv1"), &roots, &leaving);
        assert_eq!(survey.hosts, ["hv6"]);
        survey.keep_apart(&BTreeSet::from(["hv6".to_owned()]));
        assert!(survey.hosts.is_empty());
        assert_eq!(
            survey.why_none(),
            "of the 5 other hosts of its zone, 2 disabled, in maintenance or being drained, 1 \
             down, 1 without room for it, 1 taken by another member of its server group: put one \
             of them back into service, or add a host"
        );
        let alone = Survey::new(&fleet, None, &BTreeSet::new(), &BTreeSet::new());
        assert_eq!(
            alone.others, 0,
            "a host without a zone is not in one of the others'"
        );
        assert!(alone.why_none().contains("no other host"));
    }

    #[test]
    fn hosts_of_another_zone_are_no_sure_place() {
        let fleet = fleet(&[
            ("hv1", "a", "disabled", "up"),
            ("hv2", "a", "disabled", "up"),
            ("hv3", "b", "enabled", "up"),
        ]);
        let roots = BTreeSet::from(["hv3"]);
        let survey = Survey::new(&fleet, Some("hv1"), &roots, &BTreeSet::new());
        assert_eq!(
            (survey.hosts, survey.of_other_zones),
            (vec!["hv3".to_owned()], true)
        );
        assert_eq!((survey.others, survey.closed), (1, 1));
    }

    #[test]
    fn members_of_a_group_are_looked_for_only_where_they_could_be_everywhere() {
        let group = |most| Group {
            name: "g".to_owned(),
            together: false,
            most,
            members: ["a", "b", "c"].map(str::to_owned).into(),
        };
        let here = BTreeSet::from(["a"]);
        let with = |count: usize| Survey {
            hosts: (0..count).map(|number| format!("hv{number}")).collect(),
            ..Survey::default()
        };
        let find = |most, hosts| {
            let groups = [group(most)];
            members_to_find("a", &groups, &here, &with(hosts)).len()
        };
        assert_eq!(
            (find(1, 3), find(1, 2), find(2, 2), find(2, 1)),
            (0, 2, 0, 2)
        );

        let found = [("b", "hv1"), ("c", "hv2")];
        let found = found.map(|(id, host)| (id.to_owned(), host.to_owned()));
        let found = BTreeMap::from(found);
        let taken = hosts_taken("a", &[group(1)], &found);
        assert_eq!(taken.len(), 2);
        assert!(hosts_taken("a", &[group(2)], &found).is_empty());
    }
}
