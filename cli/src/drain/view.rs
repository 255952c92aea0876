//! What people see of a drain: a frame that is drawn again and again on a terminal, lines for a log,
//! and how it ended. Pure functions from the status to text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use cobalt_api::conditions::{self, EvictionCondition};
use cobalt_api::eviction::{
    EvictionInstance, EvictionStatus, InstanceCounts, InstanceState, Outcome,
};
use jiff::Timestamp;

use super::text::{name, reason};
use crate::text::{bar, clean, fit, pad, span, table, width};

/// Columns of the bar of a host.
const HOST_BAR: usize = 22;
/// Columns of the bar of an instance.
const INSTANCE_BAR: usize = 12;
/// The most columns that names take from the rest of a line.
const NAMES: usize = 32;

/// A drain as it was last seen.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    pub node: String,
    /// It has been looked at.
    pub seen: bool,
    /// What the Eviction says. Absent while nobody has worked on it.
    pub status: Option<EvictionStatus>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// Why it ended, where the status does not say it.
    pub note: Option<String>,
    /// Why it is out of sight.
    pub trouble: Option<String>,
}

impl Drain {
    fn rows(&self) -> &[EvictionInstance] {
        self.status
            .as_ref()
            .map_or(&[][..], |status| status.instances.as_slice())
    }

    fn counts(&self) -> InstanceCounts {
        let told = self.status.as_ref().and_then(|status| status.counts);
        told.unwrap_or_else(|| InstanceCounts::of(self.rows()))
    }

    /// What it waits for, without the time.
    pub fn wait(&self) -> Option<String> {
        if !self.seen {
            return None;
        }
        let Some(status) = &self.status else {
            return Some("the operator has not begun yet".to_owned());
        };
        let wait = status.waiting_for.as_ref()?;
        Some(clean(wait.message.as_deref().unwrap_or(&wait.reason)))
    }
}

/// The terminal's size.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub columns: usize,
    pub rows: usize,
}

/// All drains in no more lines than the terminal has room for, the cursor's line left free.
pub fn frame(drains: &[Drain], now: Timestamp, size: Size) -> Vec<String> {
    let room = size.rows.saturating_sub(1);
    let mut lines = Vec::new();
    if drains.len() > room {
        let shown = room.saturating_sub(1);
        lines.extend(drains.iter().take(shown).map(|drain| head(drain, now)));
        if room > 0 {
            lines.push(format!(".. and {} more hosts", drains.len() - shown));
        }
    } else {
        let mut left = room - drains.len();
        for (index, drain) in drains.iter().enumerate() {
            lines.push(head(drain, now));
            // What one host does not need is for those after it.
            let share = left / (drains.len() - index);
            let details = shorten(details(drain, now), share);
            left -= details.len();
            lines.extend(details);
        }
    }
    // The last column stays free: some terminals go to the next line with it.
    let columns = size.columns.saturating_sub(1);
    lines.iter().map(|line| fit(line, columns)).collect()
}

fn shorten(mut lines: Vec<String>, room: usize) -> Vec<String> {
    if lines.len() > room {
        let hidden = lines.len() - room.saturating_sub(1);
        lines.truncate(room.saturating_sub(1));
        if room > 0 {
            lines.push(format!("  .. and {hidden} more"));
        }
    }
    lines
}

/// How far a host is, in one line.
fn head(drain: &Drain, now: Timestamp) -> String {
    let counts = drain.counts();
    let mut line = drain.node.clone();
    if let Some(outcome) = drain.outcome {
        write!(line, "  {outcome}: {}", tally(counts)).ok();
        return line;
    }
    let left = counts.moved + counts.gone;
    let percent = i64::from(left) * 100 / i64::from(counts.total.max(1));
    let bar = bar(usize::try_from(percent).unwrap_or(0), HOST_BAR);
    write!(line, "  {bar}  {}", tally(counts)).ok();
    let status = drain.status.as_ref();
    if let Some(eta) = status.and_then(|status| status.eta.as_ref()) {
        write!(line, "; about {} left", span(now, eta.0)).ok();
    }
    if let Some(started) = status.and_then(|status| status.started_at.as_ref()) {
        write!(line, "; {} so far", span(started.0, now)).ok();
    }
    line
}

/// How many instances are where, without those that are nowhere.
fn tally(counts: InstanceCounts) -> String {
    if counts.total == 0 {
        return "no instances".to_owned();
    }
    let mut text = format!("{}/{} moved", counts.moved, counts.total);
    for (count, what) in [
        (counts.moving, "moving"),
        (counts.pending, "pending"),
        (counts.blocked, "blocked"),
        (counts.failed, "failed"),
        (counts.cancelled, "cancelled"),
        (counts.gone, "gone"),
    ] {
        if count > 0 {
            write!(text, ", {count} {what}").ok();
        }
    }
    text
}

/// What a host waits for, what is moving, and what will not move.
fn details(drain: &Drain, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(trouble) = &drain.trouble {
        lines.push(format!("  {trouble}"));
    }
    if drain.outcome.is_some() {
        return lines;
    }
    if let Some(wait) = drain.wait() {
        let since = drain
            .status
            .as_ref()
            .and_then(|status| status.waiting_for.as_ref())
            .map(|wait| format!(", since {}", span(wait.since.0, now)))
            .unwrap_or_default();
        lines.push(format!("  waiting: {wait}{since}"));
    }
    let of = |state| drain.rows().iter().filter(move |row| row.state == state);
    let shown = || {
        of(InstanceState::Moving)
            .chain(of(InstanceState::Failed))
            .chain(of(InstanceState::Blocked))
    };
    let names = shown().map(|row| width(&name(row))).max().unwrap_or(0);
    let names = names.min(NAMES);
    for row in shown() {
        let text = match row.state {
            InstanceState::Moving => moving(row, now),
            state => {
                let state = state.as_str().to_lowercase();
                format!("{state}: {}", reason(row))
            }
        };
        lines.push(format!("  {}  {text}", pad(&name(row), names)));
    }
    lines
}

fn moving(row: &EvictionInstance, now: Timestamp) -> String {
    let mut text = match row.progress {
        Some(progress) => {
            let percent = usize::try_from(progress).unwrap_or(0);
            format!("{} {percent:3}%", bar(percent, INSTANCE_BAR))
        }
        None => " ".repeat(INSTANCE_BAR + 5),
    };
    write!(text, "  {}", way(row)).ok();
    if let Some(since) = &row.since {
        write!(text, ", {}", span(since.0, now)).ok();
    }
    text
}

/// From where to where, how, and for which time.
fn way(row: &EvictionInstance) -> String {
    let place = |host: &Option<String>| clean(host.as_deref().unwrap_or("?"));
    let mut text = format!("{} -> {}", place(&row.from), place(&row.to));
    if let Some(method) = row.method {
        write!(text, ", {}", method.as_str().to_lowercase()).ok();
    }
    if let Some(attempt) = row.attempt.filter(|attempt| *attempt > 1) {
        write!(text, ", attempt {attempt}").ok();
    }
    text
}

/// One line for each change of an instance's state, and of what the drain waits for.
pub fn changes(before: &Drain, after: &Drain) -> Vec<String> {
    let node = &after.node;
    let mut lines = Vec::new();
    // What matters of a row: another attempt is another move.
    let key = |row: &EvictionInstance| {
        let attempt = row.attempt.filter(|_| row.state == InstanceState::Moving);
        (row.state, attempt)
    };
    let known: BTreeMap<&str, _> = before
        .rows()
        .iter()
        .map(|row| (row.id.as_str(), key(row)))
        .collect();
    for row in after.rows() {
        let was = known.get(row.id.as_str());
        let is_new_and_pending = was.is_none() && row.state == InstanceState::Pending;
        if was == Some(&key(row)) || is_new_and_pending {
            continue;
        }
        lines.push(format!("{node}: {} {}", name(row), happening(row)));
    }
    // The end says all.
    let (was, is) = (before.wait(), after.wait());
    if after.outcome.is_none() && was != is {
        lines.push(match is {
            Some(wait) => format!("{node}: waiting: {wait}"),
            None => format!("{node}: the wait is over"),
        });
    }
    lines
}

/// What has just happened to an instance.
fn happening(row: &EvictionInstance) -> String {
    let because = |text: &str| {
        let reason = reason(row);
        if reason.is_empty() {
            text.to_owned()
        } else {
            format!("{text}: {reason}")
        }
    };
    match row.state {
        InstanceState::Pending => because("waits for another attempt"),
        InstanceState::Blocked => because("is blocked"),
        InstanceState::Moving => format!("is moving: {}", way(row)),
        InstanceState::Moved => format!("has moved: {}", way(row)),
        InstanceState::Gone => "is gone: it was deleted".to_owned(),
        InstanceState::Failed => because("has failed"),
        InstanceState::Cancelled => "stays: the drain was cancelled".to_owned(),
    }
}

/// How drains ended: a table of the hosts, a table of what has not left, and what to do next.
pub fn ending(drains: &[Drain], now: Timestamp) -> String {
    let head = [
        "HOST", "OUTCOME", "TOTAL", "MOVED", "GONE", "BLOCKED", "FAILED", "STAYED", "TIME",
    ];
    let rows: Vec<_> = drains
        .iter()
        .map(|drain| {
            let counts = drain.counts();
            let outcome = drain.outcome.map_or("", Outcome::as_str);
            [
                drain.node.clone(),
                outcome.to_owned(),
                counts.total.to_string(),
                counts.moved.to_string(),
                counts.gone.to_string(),
                counts.blocked.to_string(),
                counts.failed.to_string(),
                (counts.pending + counts.moving + counts.cancelled).to_string(),
                took(drain, now),
            ]
        })
        .collect();
    let mut out = table(head, &rows);
    let stay: Vec<_> = drains.iter().flat_map(staying).collect();
    if !stay.is_empty() {
        let head = ["INSTANCE", "ID", "HOST", "STATE", "ATTEMPTS", "REASON"];
        write!(out, "\n{}", table(head, &stay)).ok();
    }
    out.push('\n');
    for drain in drains {
        writeln!(out, "{}: {}", drain.node, advice(drain)).ok();
    }
    out
}

fn took(drain: &Drain, now: Timestamp) -> String {
    let status = drain.status.as_ref();
    let Some(started) = status.and_then(|status| status.started_at.as_ref()) else {
        return "-".to_owned();
    };
    let finished = status.and_then(|status| status.finished_at.as_ref());
    span(started.0, finished.map_or(now, |finished| finished.0))
}

/// The instances that have not left.
fn staying(drain: &Drain) -> impl Iterator<Item = [String; 6]> {
    let left =
        |row: &&EvictionInstance| !matches!(row.state, InstanceState::Moved | InstanceState::Gone);
    drain.rows().iter().filter(left).map(|row| {
        [
            name(row),
            clean(&row.id),
            drain.node.clone(),
            row.state.as_str().to_owned(),
            row.attempt.unwrap_or(0).to_string(),
            reason(row),
        ]
    })
}

/// What was said at the end, and what to do next.
fn advice(drain: &Drain) -> String {
    let node = &drain.node;
    let said = drain.note.clone().or_else(|| {
        let all = &drain.status.as_ref()?.conditions;
        let found = conditions::find(all, EvictionCondition::Evicting)?;
        (!found.message.is_empty()).then(|| clean(&found.message))
    });
    let said = said.map(|said| format!("{said}; ")).unwrap_or_default();
    let next = match drain.outcome {
        Some(Outcome::Succeeded) => {
            format!("empty and out of service; `cobalt undrain {node}` puts it back")
        }
        Some(Outcome::PartiallyFailed | Outcome::Failed) => format!(
            "not empty; mend what stands above and run `cobalt drain {node} --wait` again, or \
             `cobalt undrain {node}` to put it back into service"
        ),
        Some(Outcome::TimedOut) => format!(
            "not empty in time; run `cobalt drain {node} --wait` again with a longer --timeout, or \
             `cobalt undrain {node}` to put it back into service"
        ),
        Some(Outcome::Cancelled) => format!(
            "cancelled, and what has not moved stays; `cobalt undrain {node} --wait` waits until \
             it is back in service"
        ),
        None => format!("under way; `cobalt drain {node} --wait` follows it"),
    };
    format!("{said}{next}")
}

#[cfg(test)]
mod tests {
    use cobalt_api::eviction::{Method, Preflight, PreflightFinding, Verdict};
    use cobalt_api::wait::Wait;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn row(name: &str, state: InstanceState) -> EvictionInstance {
        EvictionInstance {
            name: Some(name.to_owned()),
            from: Some("hv1".to_owned()),
            state,
            since: Some(Time(at(60))),
            ..EvictionInstance::new(format!("id-{name}"))
        }
    }

    fn on_its_way(name: &str, progress: Option<i32>, attempt: i32) -> EvictionInstance {
        EvictionInstance {
            to: Some("hv2".to_owned()),
            method: Some(Method::Live),
            attempt: Some(attempt),
            progress,
            ..row(name, InstanceState::Moving)
        }
    }

    fn blocked(name: &str) -> EvictionInstance {
        let finding = PreflightFinding {
            reason: "NoCapacity".to_owned(),
            message: Some("no host has 64 GiB".to_owned()),
        };
        EvictionInstance {
            preflight: Some(Preflight {
                verdict: Verdict::Blocked,
                hosts: Some(0),
                reasons: vec![finding],
            }),
            ..row(name, InstanceState::Blocked)
        }
    }

    fn failed(name: &str) -> EvictionInstance {
        EvictionInstance {
            attempt: Some(3),
            error: Some("the target\nvanished".to_owned()),
            ..row(name, InstanceState::Failed)
        }
    }

    fn drain(rows: Vec<EvictionInstance>) -> Drain {
        Drain {
            node: "hv1".to_owned(),
            seen: true,
            status: Some(EvictionStatus {
                started_at: Some(Time(at(0))),
                instances: rows,
                ..EvictionStatus::default()
            }),
            ..Drain::default()
        }
    }

    fn waiting(mut drain: Drain, text: &str) -> Drain {
        drain.status.as_mut().unwrap().waiting_for = Some(Wait {
            reason: "Target".to_owned(),
            message: Some(text.to_owned()),
            since: Time(at(50)),
            deadline: None,
        });
        drain
    }

    const WIDE: Size = Size {
        columns: 120,
        rows: 40,
    };

    #[test]
    fn a_frame_shows_what_moves_and_what_does_not() {
        let mut seen = waiting(
            drain(vec![
                row("done", InstanceState::Moved),
                on_its_way("web-1", Some(50), 1),
                on_its_way("database", None, 2),
                row("later", InstanceState::Pending),
                blocked("stuck"),
                failed("broken"),
            ]),
            "no room on hv2",
        );
        seen.status.as_mut().unwrap().eta = Some(Time(at(280)));
        let expected = "\
hv1  [###-----------------]  1/6 moved, 2 moving, 1 pending, 1 blocked, 1 failed; about 3m20s left; 1m20s so far
  waiting: no room on hv2, since 30s
  web-1     [#####-----]  50%  hv1 -> hv2, live, 20s
  database                     hv1 -> hv2, live, attempt 2, 20s
  broken    failed: the target vanished
  stuck     blocked: NoCapacity: no host has 64 GiB";
        assert_eq!(frame(&[seen], at(80), WIDE).join("\n"), expected);
    }

    #[test]
    fn a_frame_says_who_has_to_act_before_anything_is_known() {
        let unseen = Drain {
            node: "hv1".to_owned(),
            ..Drain::default()
        };
        let fresh = Drain {
            seen: true,
            ..unseen.clone()
        };
        let lost = Drain {
            trouble: Some("the API server does not answer".to_owned()),
            outcome: None,
            ..drain(vec![])
        };
        let over = Drain {
            outcome: Some(Outcome::Succeeded),
            ..drain(vec![row("a", InstanceState::Moved)])
        };
        let expected = "\
hv1  [--------------------]  no instances
hv1  [--------------------]  no instances
  waiting: the operator has not begun yet
hv1  [--------------------]  no instances; 5s so far
  the API server does not answer
hv1  Succeeded: 1/1 moved";
        let lines = frame(&[unseen, fresh, lost, over], at(5), WIDE);
        assert_eq!(lines.join("\n"), expected);
    }

    #[test]
    fn a_small_terminal_gets_the_heads_first_and_says_what_it_hides() {
        let rows: Vec<_> = (0..50)
            .map(|n| on_its_way(&format!("vm-{n}"), Some(n), 1))
            .collect();
        let size = |columns, rows| Size { columns, rows };
        let lines = frame(&[drain(rows.clone())], at(0), size(60, 5));
        assert_eq!(lines.len(), 4);
        assert!(lines[1].contains("vm-0"), "{lines:?}");
        assert_eq!(lines[3], "  .. and 48 more");
        // Two hosts share the room; what the first does not need is for the second.
        let lines = frame(&[drain(vec![]), drain(rows)], at(0), size(60, 8));
        assert_eq!(lines.len(), 7);
        assert_eq!(lines[6], "  .. and 46 more");
        let many = vec![drain(vec![]); 9];
        let lines = frame(&many, at(0), size(40, 4));
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[2], ".. and 7 more hosts");
        assert_eq!(lines[0].len(), 39);
        assert!(frame(&many, at(0), size(0, 0)).is_empty());
    }

    #[test]
    fn a_log_has_each_change_once() {
        let unseen = Drain {
            node: "hv1".to_owned(),
            ..Drain::default()
        };
        let fresh = Drain {
            seen: true,
            ..unseen.clone()
        };
        let begun = waiting(
            drain(vec![row("a", InstanceState::Pending), blocked("b")]),
            "no room on hv2",
        );
        let moves = drain(vec![on_its_way("a", Some(10), 1), blocked("b")]);
        let progress = drain(vec![on_its_way("a", Some(90), 1), blocked("b")]);
        let again = drain(vec![on_its_way("a", None, 2), blocked("b")]);
        let mut stays = row("b", InstanceState::Cancelled);
        stays.preflight = None;
        let mut over = drain(vec![failed("a"), stays, row("c", InstanceState::Gone)]);
        over.outcome = Some(Outcome::Cancelled);
        let mut back = drain(vec![row("a", InstanceState::Pending), blocked("b")]);
        back.status.as_mut().unwrap().instances[0].error = Some("refused".to_owned());
        let mut moved = on_its_way("a", None, 1);
        moved.state = InstanceState::Moved;
        let moved = drain(vec![moved, blocked("b")]);
        let cases: [(&Drain, &Drain, &[&str]); 10] = [
            (
                &unseen,
                &fresh,
                &["hv1: waiting: the operator has not begun yet"],
            ),
            (
                &fresh,
                &begun,
                &[
                    "hv1: b is blocked: NoCapacity: no host has 64 GiB",
                    "hv1: waiting: no room on hv2",
                ],
            ),
            (&begun, &begun, &[]),
            (
                &begun,
                &moves,
                &[
                    "hv1: a is moving: hv1 -> hv2, live",
                    "hv1: the wait is over",
                ],
            ),
            (&moves, &progress, &[]),
            (
                &progress,
                &again,
                &["hv1: a is moving: hv1 -> hv2, live, attempt 2"],
            ),
            (
                &moves,
                &back,
                &["hv1: a waits for another attempt: refused"],
            ),
            (&moves, &moved, &["hv1: a has moved: hv1 -> hv2, live"]),
            (
                &again,
                &over,
                &[
                    "hv1: a has failed: the target vanished",
                    "hv1: b stays: the drain was cancelled",
                    "hv1: c is gone: it was deleted",
                ],
            ),
            (&over, &over, &[]),
        ];
        for (before, after, expected) in cases {
            assert_eq!(changes(before, after), expected);
        }
    }

    #[test]
    fn the_end_is_a_table_of_hosts_and_of_what_stays() {
        let mut over = drain(vec![
            row("a", InstanceState::Moved),
            row("b", InstanceState::Gone),
            failed("c"),
            blocked("d"),
        ]);
        over.outcome = Some(Outcome::PartiallyFailed);
        over.status.as_mut().unwrap().finished_at = Some(Time(at(100)));
        let gone = Drain {
            node: "hv2".to_owned(),
            outcome: Some(Outcome::Cancelled),
            note: Some("its Eviction was deleted".to_owned()),
            ..Drain::default()
        };
        let expected = "\
HOST  OUTCOME          TOTAL  MOVED  GONE  BLOCKED  FAILED  STAYED  TIME
hv1   PartiallyFailed  4      1      1     1        1       0       1m40s
hv2   Cancelled        0      0      0     0        0       0       -

INSTANCE  ID    HOST  STATE    ATTEMPTS  REASON
c         id-c  hv1   Failed   3         the target vanished
d         id-d  hv1   Blocked  0         NoCapacity: no host has 64 GiB

hv1: not empty; mend what stands above and run `cobalt drain hv1 --wait` again, or `cobalt undrain hv1` to put it back into service
hv2: its Eviction was deleted; cancelled, and what has not moved stays; `cobalt undrain hv2 --wait` waits until it is back in service
";
        assert_eq!(ending(&[over, gone], at(500)), expected);
    }

    fn any_row() -> impl Strategy<Value = EvictionInstance> {
        let state = prop::sample::select(InstanceState::ALL);
        let progress = prop::option::of(-5..200);
        ("\\PC{0,40}", state, progress, "\\PC{0,60}").prop_map(|(name, state, progress, error)| {
            EvictionInstance {
                progress,
                error: Some(error),
                ..row(&name, state)
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_frame_never_exceeds_the_terminal(
            hosts in prop::collection::vec(prop::collection::vec(any_row(), 0..8), 0..4),
            columns in 0_usize..100,
            rows in 0_usize..20,
        ) {
            let drains: Vec<_> = hosts.into_iter().map(drain).collect();
            let lines = frame(&drains, at(0), Size { columns, rows });
            prop_assert!(lines.len() <= rows.saturating_sub(1));
            for line in &lines {
                prop_assert!(width(line) <= columns.saturating_sub(1), "{}", line);
                prop_assert!(!line.chars().any(char::is_control), "{}", line);
            }
        }

        #[test]
        fn nothing_changed_is_no_line(rows in prop::collection::vec(any_row(), 0..8)) {
            let rows: Vec<_> = rows
                .into_iter()
                .enumerate()
                .map(|(n, row)| EvictionInstance { id: n.to_string(), ..row })
                .collect();
            let seen = drain(rows);
            prop_assert_eq!(changes(&seen, &seen), [""; 0]);
        }
    }
}
