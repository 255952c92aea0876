//! Since when something has looked wrong, and whether that is long enough to be an issue.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use cobalt_api::ovsnode::Issue;
use jiff::{Timestamp, Unit};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::findings::{Finding, Kind};

/// Issues of one kind that are told one by one.
const EACH: usize = 20;
/// All issues that are told; the schema takes no more.
const ALL: usize = 256;
/// How long an issue that an earlier agent told is believed without being found again: what it is
/// about may not have been looked at yet.
const HOLD: Duration = Duration::from_secs(20);

/// What has looked wrong until now.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    entries: BTreeMap<(Kind, String), Entry>,
    /// Issues of an earlier agent, and until when they are believed.
    earlier: BTreeMap<(Kind, String), Issue>,
    believed_until: Option<Timestamp>,
}

#[derive(Debug, Clone)]
struct Entry {
    since: Timestamp,
    /// None: taken over, whatever it was.
    mark: Option<i64>,
    /// It was an issue already.
    told: bool,
}

/// What is an issue now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Judgement {
    /// The issues, worst first.
    pub issues: Vec<Issue>,
    /// After how much time there may be another one without anything else happening.
    pub next: Option<Duration>,
}

impl Ledger {
    /// Takes over what an earlier agent has told, so that its times stay.
    pub fn remember(&mut self, issues: &[Issue], now: Timestamp) {
        for issue in issues {
            let name = issue.kind.as_deref().unwrap_or_default();
            let kind = Kind::ALL.iter().find(|kind| kind.as_str() == name);
            let (Some(kind), Some(object), Some(since)) = (kind, &issue.object, &issue.detected_at)
            else {
                continue;
            };
            let key = (*kind, object.clone());
            let entry = Entry {
                since: since.0,
                mark: None,
                told: true,
            };
            self.entries.insert(key.clone(), entry);
            self.earlier.insert(key, issue.clone());
        }
        self.believed_until = now.checked_add(HOLD).ok();
    }

    /// Judges what looks wrong now.
    pub fn judge(&mut self, findings: Vec<Finding>, now: Timestamp) -> Judgement {
        let believe = self.believed_until.is_some_and(|until| now < until);
        if !believe {
            self.earlier.clear();
        }
        let mut entries = BTreeMap::new();
        let mut judgement = Judgement::default();
        for finding in findings {
            let key = (finding.kind, finding.object.clone());
            self.earlier.remove(&key);
            let known = self.entries.remove(&key);
            let known = known.filter(|entry| entry.mark.is_none_or(|mark| mark == finding.mark));
            let mut entry = known.unwrap_or(Entry {
                since: now,
                mark: None,
                told: false,
            });
            entry.mark = Some(finding.mark);
            let lasted = Duration::try_from(now.duration_since(entry.since)).unwrap_or_default();
            if entry.told || lasted >= finding.grace {
                entry.told = true;
                judgement.issues.push(issue(finding, entry.since));
            } else {
                let left = finding.grace - lasted;
                judgement.next = Some(judgement.next.map_or(left, |next| next.min(left)));
            }
            entries.insert(key, entry);
        }
        if believe {
            // Those that were not found again, or not yet.
            for (key, issue) in &self.earlier {
                if let Some(entry) = self.entries.remove(key) {
                    entries.insert(key.clone(), entry);
                    judgement.issues.push(issue.clone());
                }
            }
            if let Some(until) = self.believed_until.filter(|_| !self.earlier.is_empty()) {
                let left = Duration::try_from(until.duration_since(now)).unwrap_or_default();
                judgement.next = Some(judgement.next.map_or(left, |next| next.min(left)));
            }
        }
        self.entries = entries;
        judgement.issues = arrange(judgement.issues);
        judgement
    }
}

fn issue(finding: Finding, since: Timestamp) -> Issue {
    Issue {
        severity: finding.kind.severity(),
        message: shorten(finding.message, 2000),
        detected_at: Some(Time(seconds(since))),
        kind: Some(finding.kind.as_str().to_owned()),
        object: Some(shorten(finding.object, 253)),
        remedy: Some(finding.kind.remedy().to_owned()),
    }
}

/// Kubernetes keeps whole seconds.
fn seconds(time: Timestamp) -> Timestamp {
    let whole = jiff::TimestampRound::new()
        .smallest(Unit::Second)
        .mode(jiff::RoundMode::Trunc);
    time.round(whole).unwrap_or(time)
}

fn shorten(mut text: String, length: usize) -> String {
    if let Some((cut, _)) = text.char_indices().nth(length) {
        text.truncate(cut);
    }
    text
}

/// Worst first, and of many that are alike only some.
fn arrange(mut issues: Vec<Issue>) -> Vec<Issue> {
    let key = |issue: &Issue| {
        (
            Reverse(issue.severity),
            issue.kind.clone(),
            issue.object.clone(),
        )
    };
    issues.sort_by_key(key);
    let mut kept: Vec<Issue> = Vec::new();
    let (mut alike, mut left_out) = (0, 0_usize);
    for issue in issues {
        let same = kept.last().is_some_and(|last| last.kind == issue.kind);
        alike = if same { alike + 1 } else { 1 };
        if !same {
            left_out = 0;
        }
        if alike > EACH {
            left_out += 1;
            if let Some(last) = kept.last_mut() {
                last.message = last_message(&last.message, left_out);
            }
        } else if kept.len() < ALL {
            kept.push(issue);
        }
    }
    kept
}

fn last_message(message: &str, left_out: usize) -> String {
    const MORE: &str = " (more of this kind: ";
    let own = message.split(MORE).next().unwrap_or(message);
    format!("{own}{MORE}{left_out})")
}

#[cfg(test)]
mod tests {
    use cobalt_api::ovsnode::Severity;
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn finding(kind: Kind, object: &str, grace: u64, mark: i64) -> Finding {
        Finding {
            kind,
            object: object.into(),
            message: "m".into(),
            grace: Duration::from_secs(grace),
            mark,
        }
    }

    fn objects(judgement: &Judgement) -> Vec<&str> {
        let objects = judgement.issues.iter();
        objects
            .filter_map(|issue| issue.object.as_deref())
            .collect()
    }

    #[test]
    fn it_becomes_an_issue_after_its_grace_and_keeps_its_time() {
        let mut ledger = Ledger::default();
        let orphan = || vec![finding(Kind::OrphanPort, "tap1", 30, 0)];
        let early = ledger.judge(orphan(), at(100));
        assert_eq!(objects(&early), Vec::<&str>::new());
        assert_eq!(early.next, Some(Duration::from_secs(30)));
        for now in [130, 150] {
            let late = ledger.judge(orphan(), at(now));
            assert_eq!(objects(&late), ["tap1"]);
            assert_eq!(late.issues[0].detected_at, Some(Time(at(100))));
            assert_eq!(late.next, None);
        }
        assert_eq!(ledger.judge(Vec::new(), at(160)), Judgement::default());
        // It begins again.
        assert!(ledger.judge(orphan(), at(170)).issues.is_empty());
    }

    #[test]
    fn what_moves_on_is_slow_and_not_stuck() {
        let mut ledger = Ledger::default();
        let lag = |mark| vec![finding(Kind::SouthboundLag, "hv1", 30, mark)];
        assert!(ledger.judge(lag(1), at(0)).issues.is_empty());
        assert!(ledger.judge(lag(2), at(29)).issues.is_empty());
        assert!(ledger.judge(lag(2), at(58)).issues.is_empty());
        assert_eq!(ledger.judge(lag(2), at(59)).issues.len(), 1);
        assert!(ledger.judge(lag(3), at(60)).issues.is_empty());
    }

    #[test]
    fn what_an_earlier_agent_told_stays_until_it_was_looked_at() {
        let mut earlier = Ledger::default();
        let two = || {
            vec![
                finding(Kind::OrphanPort, "tap1", 30, 0),
                finding(Kind::DeviceGone, "tap2", 30, 0),
            ]
        };
        earlier.judge(two(), at(0));
        let told = earlier.judge(two(), at(30)).issues;
        let mut ledger = Ledger::default();
        ledger.remember(&told, at(1000));
        assert_eq!(ledger.judge(Vec::new(), at(1001)).issues, told);
        // One is found again, and is an issue without another grace.
        let one = || vec![finding(Kind::OrphanPort, "tap1", 30, 5)];
        let judged = ledger.judge(one(), at(1002));
        assert_eq!(judged.issues, told);
        assert_eq!(judged.next, Some(Duration::from_secs(18)));
        let judged = ledger.judge(one(), at(1020));
        assert_eq!(objects(&judged), ["tap1"]);
        assert_eq!(judged.issues[0].detected_at, Some(Time(at(0))));
        // What is cleared while it is believed is cleared at once, when it was found before.
        assert!(ledger.judge(Vec::new(), at(1021)).issues.is_empty());
    }

    #[test]
    fn worst_come_first_and_many_that_are_alike_are_cut() {
        let mut ledger = Ledger::default();
        let mut many: Vec<Finding> = (0..50)
            .map(|number| finding(Kind::OrphanPort, &format!("tap{number:02}"), 0, 0))
            .collect();
        many.push(finding(Kind::VswitchdDown, "ovs-vswitchd", 0, 0));
        let issues = ledger.judge(many, at(0)).issues;
        assert_eq!(issues.len(), EACH + 1);
        assert_eq!(issues[0].severity, Severity::Critical);
        assert_eq!(issues[EACH].message, "m (more of this kind: 30)");
    }

    proptest! {
        #[test]
        fn the_order_of_findings_does_not_matter_and_nothing_is_early(
            picks in prop::collection::btree_set((0..Kind::ALL.len(), 0..30_u64), 0..40),
            seconds in 0..40_i64,
        ) {
            let all: Vec<Finding> = picks
                .iter()
                .map(|(kind, grace)| finding(Kind::ALL[*kind], &grace.to_string(), *grace, 0))
                .collect();
            let mut turned = all.clone();
            turned.reverse();
            let (mut one, mut two) = (Ledger::default(), Ledger::default());
            one.judge(all.clone(), at(0));
            two.judge(turned.clone(), at(0));
            let (one, two) = (one.judge(all.clone(), at(seconds)), two.judge(turned, at(seconds)));
            prop_assert_eq!(&one, &two);
            let waits = all.iter().filter(|finding| finding.grace > Duration::from_secs(seconds as u64));
            prop_assert_eq!(one.issues.len() + waits.count(), all.len());
            prop_assert!(one.issues.is_sorted_by_key(|issue| Reverse(issue.severity)));
        }
    }
}
