//! Which labels of a Pod to set and which to remove.
//!
//! A label that somebody else has set is theirs: a ReplicaSet that selects Pods by it would lose the
//! Pod and start another one if the injector changed it. Whose label it is, the managed fields tell.
//! Zone and region are nobody's: the API server itself sets them at the binding (see `pods`).
//!
//! | the Node has it | the Pod has it | set by | then |
//! |---|---|---|---|
//! | yes | no | | set it |
//! | yes | the same value | the injector | nothing |
//! | yes | the same value | a predecessor alone | take it over |
//! | yes | another value | the injector or a predecessor | set it |
//! | yes | another value | anybody else | leave it, and report the conflict |
//! | no | yes | the injector alone | give it up: the API server removes it |
//! | no | yes | a predecessor | remove it |
//! | no | yes | anybody else | leave it |

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::pods::BoundPod;

/// Everything that is known of a Pod and its Node.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The Pod.
    pub pod: Arc<Option<BoundPod>>,
    /// What its Node gives to its Pods.
    pub node: Arc<BTreeMap<String, String>>,
}

/// A label that differs from the Node's and is not the injector's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The key.
    pub label: String,
    /// What the Pod has.
    pub pod: String,
    /// What the Node has.
    pub node: String,
}

/// What to write to a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// All labels that the injector owns from now on; `None` if that does not change.
    pub apply: Option<BTreeMap<String, String>>,
    /// A predecessor owns some of them with another value.
    pub force: bool,
    /// Labels of a predecessor that the Node does not have.
    pub remove: Vec<String>,
    /// Labels that are left alone.
    pub conflicts: Vec<Conflict>,
}

/// Compares a Pod with its Node; `None` if there is nothing to do or to report.
#[must_use]
pub fn decide(pod: &BoundPod, node: &BTreeMap<String, String>) -> Option<Plan> {
    // Its end changes nothing for anybody who looks for it by its labels.
    if pod.terminating {
        return None;
    }
    let mut plan = Plan::default();
    let mut owned = BTreeMap::new();
    let mut changed = false;
    for (key, wanted) in node {
        match pod.labels.get(key) {
            None => {
                owned.insert(key.clone(), wanted.clone());
                changed = true;
            }
            Some(label) if label.value == *wanted => {
                if label.owners.injector || !label.owners.foreign {
                    owned.insert(key.clone(), wanted.clone());
                    changed |= !label.owners.injector;
                }
            }
            Some(label) if label.owners.foreign => {
                changed |= label.owners.injector;
                plan.conflicts.push(Conflict {
                    label: key.clone(),
                    pod: label.value.clone(),
                    node: wanted.clone(),
                });
            }
            Some(label) => {
                owned.insert(key.clone(), wanted.clone());
                changed = true;
                plan.force |= label.owners.predecessor;
            }
        }
    }
    for (key, label) in &pod.labels {
        if node.contains_key(key) {
            continue;
        }
        if label.owners.predecessor && !label.owners.foreign {
            plan.remove.push(key.clone());
        }
        changed |= label.owners.injector;
    }
    plan.apply = changed.then_some(owned);
    (plan != Plan::default()).then_some(plan)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pods::{Owners, PodLabel};

    const INJECTOR: Owners = Owners {
        injector: true,
        predecessor: false,
        foreign: false,
    };
    const PREDECESSOR: Owners = Owners {
        injector: false,
        predecessor: true,
        foreign: false,
    };
    const FOREIGN: Owners = Owners {
        injector: false,
        predecessor: false,
        foreign: true,
    };

    fn pod(labels: &[(&str, &str, Owners)]) -> BoundPod {
        let labels = labels.iter().map(|&(key, value, owners)| {
            let value = value.to_owned();
            (key.to_owned(), PodLabel { value, owners })
        });
        BoundPod {
            uid: "1".to_owned(),
            node: "n".into(),
            terminating: false,
            labels: labels.collect(),
        }
    }

    fn pairs(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = labels.iter();
        owned
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    fn apply(labels: &[(&str, &str)]) -> Plan {
        Plan {
            apply: Some(pairs(labels)),
            ..Plan::default()
        }
    }

    #[test]
    fn every_row_of_the_table_holds() {
        let zone = pairs(&[("zone", "a")]);
        let none = pairs(&[]);
        let both = Owners {
            predecessor: true,
            ..INJECTOR
        };
        let shared = Owners {
            foreign: true,
            ..INJECTOR
        };
        let conflict = Conflict {
            label: "zone".to_owned(),
            pod: "b".to_owned(),
            node: "a".to_owned(),
        };
        let conflicts = vec![conflict];
        for (what, node, labels, wanted) in [
            ("missing", &zone, &[][..], Some(apply(&[("zone", "a")]))),
            ("as it should be", &zone, &[("zone", "a", INJECTOR)], None),
            (
                "a predecessor's, the same",
                &zone,
                &[("zone", "a", PREDECESSOR)],
                Some(apply(&[("zone", "a")])),
            ),
            (
                "shared with a predecessor",
                &zone,
                &[("zone", "a", both)],
                None,
            ),
            ("foreign, the same", &zone, &[("zone", "a", FOREIGN)], None),
            (
                "old",
                &zone,
                &[("zone", "b", INJECTOR)],
                Some(apply(&[("zone", "a")])),
            ),
            (
                "a predecessor's, old",
                &zone,
                &[("zone", "b", PREDECESSOR)],
                Some(Plan {
                    force: true,
                    ..apply(&[("zone", "a")])
                }),
            ),
            (
                "foreign, another value",
                &zone,
                &[("zone", "b", FOREIGN)],
                Some(Plan {
                    conflicts: conflicts.clone(),
                    ..Plan::default()
                }),
            ),
            (
                "shared with somebody, another value",
                &zone,
                &[("zone", "b", shared)],
                Some(Plan {
                    conflicts,
                    ..apply(&[])
                }),
            ),
            (
                "removed from the Node",
                &none,
                &[("zone", "a", INJECTOR)],
                Some(apply(&[])),
            ),
            (
                "removed, a predecessor's",
                &none,
                &[("zone", "a", PREDECESSOR)],
                Some(Plan {
                    remove: vec!["zone".to_owned()],
                    ..Plan::default()
                }),
            ),
            (
                "removed, of both",
                &none,
                &[("zone", "a", both)],
                Some(Plan {
                    remove: vec!["zone".to_owned()],
                    ..apply(&[])
                }),
            ),
            ("removed, foreign", &none, &[("zone", "a", FOREIGN)], None),
        ] {
            assert_eq!(decide(&pod(labels), node), wanted, "{what}");
        }
    }

    #[test]
    fn a_pod_that_is_being_deleted_is_left_alone() {
        let mut pod = pod(&[]);
        pod.terminating = true;
        assert_eq!(decide(&pod, &pairs(&[("zone", "a")])), None);
    }

    /// What the API server makes of a plan.
    fn carry_out(pod: &BoundPod, plan: &Plan) -> BoundPod {
        let mut after = pod.clone();
        for key in &plan.remove {
            after.labels.remove(key);
        }
        let Some(owned) = &plan.apply else {
            return after;
        };
        after.labels.retain(|key, label| {
            label.owners.injector = label.owners.injector && owned.contains_key(key);
            label.owners != Owners::default()
        });
        for (key, value) in owned {
            let label = after.labels.entry(key.clone()).or_insert_with(|| PodLabel {
                value: value.clone(),
                owners: INJECTOR,
            });
            if label.value == *value {
                label.owners.injector = true;
            } else {
                assert!(!label.owners.foreign, "a foreign {key} was overwritten");
                assert!(plan.force || !label.owners.predecessor, "{key} needs force");
                label.value.clone_from(value);
                label.owners = INJECTOR;
            }
        }
        after
    }

    fn any_owners() -> impl Strategy<Value = Owners> {
        let flags = any::<(bool, bool, bool)>();
        flags.prop_map(|(injector, predecessor, foreign)| Owners {
            injector,
            predecessor,
            foreign: foreign || !(injector || predecessor),
        })
    }

    proptest! {
        #[test]
        fn one_write_is_enough_and_foreign_labels_stay(
            node in prop::collection::btree_map("[a-d]", "[xy]", 0..4),
            labels in prop::collection::btree_map("[a-d]", ("[xy]", any_owners()), 0..4),
        ) {
            let labels = labels.into_iter().map(|(key, (value, owners))| (key, PodLabel { value, owners }));
            let before = BoundPod { labels: labels.collect(), ..pod(&[]) };
            let plan = decide(&before, &node).unwrap_or_default();
            let after = carry_out(&before, &plan);
            let again = decide(&after, &node).unwrap_or_default();
            prop_assert_eq!(again.apply, None);
            prop_assert!(again.remove.is_empty());
            for (key, label) in &before.labels {
                if label.owners.foreign {
                    prop_assert_eq!(&after.labels[key].value, &label.value);
                }
            }
            for (key, value) in &node {
                let foreign = before.labels.get(key).is_some_and(|label| label.owners.foreign);
                prop_assert!(foreign || after.labels[key].value == *value);
            }
            for key in after.labels.keys() {
                let foreign = before.labels.get(key).is_some_and(|label| label.owners.foreign);
                prop_assert!(foreign || node.contains_key(key));
            }
        }
    }
}
