//! Flows: what they match, what they do, how much went through them.
//!
//! A flow is a view into the message that brought it. Matches and actions are read when somebody
//! asks; what nobody needs is passed over.

use std::time::Duration;

use super::stats::{Counters, read_counters};
use super::wire::{Reader, Version, WireError};

/// The class of the fields of the standard.
const OXM_BASIC: u16 = 0x8000;
/// A field of somebody's own.
const OXM_EXPERIMENTER: u16 = 0xffff;
const OXM_IN_PORT: u8 = 0;

const NICIRA: u32 = 0x0000_2320;
const ACTION_OUTPUT: u16 = 0;
const ACTION_GROUP: u16 = 22;
const ACTION_EXPERIMENTER: u16 = 0xffff;
const NICIRA_RESUBMIT: u16 = 1;
const NICIRA_RESUBMIT_TABLE: u16 = 14;
const NICIRA_CT: u16 = 35;
const NICIRA_CLONE: u16 = 42;
const NICIRA_RESUBMIT_TABLE_CT: u16 = 44;

/// How deeply actions may be inside of each other. Nobody needs that many.
const DEPTH: usize = 16;

/// A flow.
#[derive(Debug, Clone)]
pub struct Flow<'a> {
    /// Its table.
    pub table: u8,
    /// Its priority.
    pub priority: u16,
    /// Its cookie. ovn-controller's are the first 32 bits of a row of the southbound database.
    pub cookie: u64,
    /// For how long it has been there.
    pub duration: Option<Duration>,
    /// For how long no packet has met it. Not in versions before 1.5.
    pub idle: Option<Duration>,
    /// After how many seconds without a packet it goes; 0 for never.
    pub idle_timeout: u16,
    /// After how many seconds it goes; 0 for never.
    pub hard_timeout: u16,
    /// How many packets met it.
    pub packets: Option<u64>,
    /// How many bytes they had.
    pub bytes: Option<u64>,
    fields: Match<'a>,
    instructions: &'a [u8],
}

/// What packets a flow is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match<'a>(&'a [u8]);

/// A field of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchField<'a> {
    /// Whose field it is (`oxm_class`).
    pub class: u16,
    /// Which one (`oxm_field`).
    pub field: u8,
    /// The value.
    pub value: &'a [u8],
    /// Which bits of it count; all of them if there is no mask.
    pub mask: Option<&'a [u8]>,
}

impl<'a> Match<'a> {
    /// Its fields.
    pub fn fields(self) -> impl Iterator<Item = Result<MatchField<'a>, WireError>> {
        let mut reader = Reader::new(self.0, "a match");
        let mut failed = false;
        std::iter::from_fn(move || {
            if failed || reader.is_empty() {
                return None;
            }
            let field = read_field(&mut reader);
            failed = field.is_err();
            Some(field)
        })
    }

    /// The port that packets come from, if it says so.
    pub fn in_port(self) -> Option<u32> {
        let basic = |field: &MatchField<'_>| {
            field.class == OXM_BASIC && field.field == OXM_IN_PORT && field.mask.is_none()
        };
        let field = self.fields().filter_map(Result::ok).find(basic)?;
        Some(u32::from_be_bytes(field.value.try_into().ok()?))
    }
}

fn read_field<'a>(reader: &mut Reader<'a>) -> Result<MatchField<'a>, WireError> {
    let class = reader.u16()?;
    let field = reader.u8()?;
    let length = usize::from(reader.u8()?);
    let mut body = Reader::new(reader.take(length)?, "a field of a match");
    if class == OXM_EXPERIMENTER {
        body.skip(4)?;
    }
    let body = body.rest();
    let (value, mask) = if field & 1 == 0 {
        (body, None)
    } else {
        let what = "a field with a mask";
        let (value, mask) = body
            .split_at_checked(body.len() / 2)
            .filter(|(value, mask)| value.len() == mask.len())
            .ok_or(WireError::Length { what, length })?;
        (value, Some(mask))
    };
    Ok(MatchField {
        class,
        field: field >> 1,
        value,
        mask,
    })
}

/// What a flow does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction<'a> {
    /// Goes on in a table.
    Goto(u8),
    /// Does these actions at once; or at the end, if `later`.
    Actions {
        /// At the end of all tables.
        later: bool,
        /// The actions, as they are on the wire.
        bytes: &'a [u8],
    },
    /// Something else, by its number (`ofp_instruction_type`).
    Other(u16),
}

/// Something that is done with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// It goes out; see [`super::ports`] for ports that are none.
    Output(u32),
    /// It goes to a group.
    Group(u32),
    /// It goes through a table again: 255 for the same.
    Resubmit(u8),
    /// Its connection is tracked, and it may go on in a table.
    Track(Option<u8>),
    /// Something else of the standard, by its number (`ofp_action_type`).
    Other(u16),
    /// Something else of somebody's own.
    Experimenter {
        /// Who.
        vendor: u32,
        /// What.
        subtype: u16,
    },
}

impl<'a> Flow<'a> {
    /// What packets it is for.
    pub fn matches(&self) -> Match<'a> {
        self.fields
    }

    /// What it does.
    pub fn instructions(&self) -> impl Iterator<Item = Result<Instruction<'a>, WireError>> {
        let mut reader = Reader::new(self.instructions, "an instruction");
        let mut failed = false;
        std::iter::from_fn(move || {
            if failed || reader.is_empty() {
                return None;
            }
            let instruction = read_instruction(&mut reader);
            failed = instruction.is_err();
            Some(instruction)
        })
    }

    /// Shows every action, also those inside of others.
    pub fn for_each_action(&self, mut visit: impl FnMut(Action)) -> Result<(), WireError> {
        for instruction in self.instructions() {
            if let Instruction::Actions { bytes, .. } = instruction? {
                read_actions(bytes, DEPTH, &mut visit)?;
            }
        }
        Ok(())
    }

    /// The ports that it sends packets to, without those that are none; see [`super::ports`].
    pub fn output_ports(&self) -> Result<Vec<u32>, WireError> {
        let mut found = Vec::new();
        self.for_each_action(|action| match action {
            Action::Output(port) if port < super::ports::MAX => found.push(port),
            _ => {}
        })?;
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

fn read_instruction<'a>(reader: &mut Reader<'a>) -> Result<Instruction<'a>, WireError> {
    let kind = reader.u16()?;
    let length = reader.u16()?;
    let mut body = reader.record(length, 4, "an instruction")?;
    Ok(match kind {
        1 => Instruction::Goto(body.u8()?),
        3 | 4 => {
            body.skip(4)?;
            Instruction::Actions {
                later: kind == 3,
                bytes: body.rest(),
            }
        }
        other => Instruction::Other(other),
    })
}

fn read_actions(
    bytes: &[u8],
    depth: usize,
    visit: &mut dyn FnMut(Action),
) -> Result<(), WireError> {
    let depth = depth.checked_sub(1).ok_or(WireError::Nested)?;
    let mut reader = Reader::new(bytes, "an action");
    while !reader.is_empty() {
        let kind = reader.u16()?;
        let length = reader.u16()?;
        // Shorter than this would never come to an end.
        if length < 8 {
            let (what, length) = ("an action", usize::from(length));
            return Err(WireError::Length { what, length });
        }
        let mut body = reader.record(length, 4, "an action")?;
        match kind {
            ACTION_OUTPUT => visit(Action::Output(body.u32()?)),
            ACTION_GROUP => visit(Action::Group(body.u32()?)),
            ACTION_EXPERIMENTER => {
                let vendor = body.u32()?;
                // Others need not have one.
                let subtype = body.u16().unwrap_or(0);
                if vendor == NICIRA {
                    read_nicira(subtype, &mut body, depth, visit)?;
                } else {
                    visit(Action::Experimenter { vendor, subtype });
                }
            }
            other => visit(Action::Other(other)),
        }
    }
    Ok(())
}

/// Actions of Open vSwitch itself, of which two have others inside.
fn read_nicira(
    subtype: u16,
    body: &mut Reader<'_>,
    depth: usize,
    visit: &mut dyn FnMut(Action),
) -> Result<(), WireError> {
    match subtype {
        NICIRA_RESUBMIT => visit(Action::Resubmit(255)),
        NICIRA_RESUBMIT_TABLE | NICIRA_RESUBMIT_TABLE_CT => {
            body.skip(2)?;
            visit(Action::Resubmit(body.u8()?));
        }
        NICIRA_CT => {
            // Flags, the source of the zone, the zone.
            body.skip(8)?;
            let table = body.u8()?;
            visit(Action::Track((table != 255).then_some(table)));
            // Padding and the helper.
            body.skip(5)?;
            read_actions(body.rest(), depth, visit)?;
        }
        NICIRA_CLONE => {
            body.skip(6)?;
            read_actions(body.rest(), depth, visit)?;
        }
        subtype => visit(Action::Experimenter {
            vendor: NICIRA,
            subtype,
        }),
    }
    Ok(())
}

/// Shows every flow of a part of an answer.
pub fn for_each_flow(
    version: Version,
    bytes: &[u8],
    mut visit: impl FnMut(&Flow<'_>),
) -> Result<(), WireError> {
    let mut reader = Reader::new(bytes, "a list of flows");
    while !reader.is_empty() {
        let length = reader.u16()?;
        let body = reader.record(length, 2, "a flow")?;
        let flow = match version {
            Version::V15 => read_described(body)?,
            Version::V13 | Version::V14 => read_counted(body)?,
        };
        visit(&flow);
    }
    Ok(())
}

/// `ofp_flow_stats` up to version 1.4.
fn read_counted(mut body: Reader<'_>) -> Result<Flow<'_>, WireError> {
    let table = body.u8()?;
    body.skip(1)?;
    let duration = read_duration(&mut body)?;
    let priority = body.u16()?;
    let (idle_timeout, hard_timeout) = (body.u16()?, body.u16()?);
    // Flags, and what version 1.4 has in the padding.
    body.skip(6)?;
    let cookie = body.u64()?;
    let (packets, bytes) = (known(body.u64()?), known(body.u64()?));
    let fields = read_match(&mut body)?;
    Ok(Flow {
        table,
        priority,
        cookie,
        duration: Some(duration),
        idle: None,
        idle_timeout,
        hard_timeout,
        packets,
        bytes,
        fields,
        instructions: body.rest(),
    })
}

/// `ofp_flow_desc` of version 1.5.
fn read_described(mut body: Reader<'_>) -> Result<Flow<'_>, WireError> {
    body.skip(2)?;
    let table = body.u8()?;
    body.skip(1)?;
    let priority = body.u16()?;
    let (idle_timeout, hard_timeout) = (body.u16()?, body.u16()?);
    // Flags and importance.
    body.skip(4)?;
    let cookie = body.u64()?;
    let fields = read_match(&mut body)?;
    let Counters {
        duration,
        idle,
        packets,
        bytes,
        ..
    } = read_counters(&mut body)?;
    Ok(Flow {
        table,
        priority,
        cookie,
        duration,
        idle,
        idle_timeout,
        hard_timeout,
        packets,
        bytes,
        fields,
        instructions: body.rest(),
    })
}

fn read_match<'a>(body: &mut Reader<'a>) -> Result<Match<'a>, WireError> {
    // There is only one kind of match any more.
    body.skip(2)?;
    let length = body.u16()?;
    Ok(Match(body.record(length, 4, "a match")?.rest()))
}

pub fn read_duration(body: &mut Reader<'_>) -> Result<Duration, WireError> {
    let (seconds, nanos) = (body.u32()?, body.u32()?);
    // More nanoseconds than a second has are no reason to refuse all of it.
    Ok(Duration::from_secs(seconds.into()).saturating_add(Duration::from_nanos(nanos.into())))
}

/// All bits set means that the switch does not know.
pub fn known(number: u64) -> Option<u64> {
    (number != u64::MAX).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(head: &[u8], body: &[u8]) -> Vec<u8> {
        let mut bytes = [head, &[0, 0], body].concat();
        let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
        bytes[head.len()..head.len() + 2].copy_from_slice(&length);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    fn output(port: u8) -> Vec<u8> {
        record(&[0, 0], &[0, 0, 0, port, 0, 0, 0, 0, 0, 0, 0, 0])
    }

    fn nicira(subtype: u8, body: &[u8]) -> Vec<u8> {
        record(
            &[0xff, 0xff],
            &[&[0, 0, 0x23, 0x20, 0, subtype], body].concat(),
        )
    }

    fn actions(bytes: &[u8]) -> Result<Vec<Action>, WireError> {
        let mut found = Vec::new();
        read_actions(bytes, DEPTH, &mut |action| found.push(action))?;
        Ok(found)
    }

    #[test]
    fn actions_inside_of_others_are_found() {
        let tracked = nicira(
            35,
            &[&[0; 8], &[33, 0, 0, 0, 0, 0][..], &output(7)].concat(),
        );
        let cloned = nicira(42, &[&[0; 6], &output(9)[..], &tracked].concat());
        let group = record(&[0, 22], &[0, 0, 0, 5]);
        let resubmit = nicira(14, &[0, 0, 8, 0, 0, 0]);
        let strange = record(&[0xff, 0xff], &[1, 2, 3, 4, 0, 1, 0, 0]);
        let all = [
            output(1),
            group,
            cloned,
            resubmit,
            strange,
            nicira(34, &[0; 6]),
        ]
        .concat();
        let expected = [
            Action::Output(1),
            Action::Group(5),
            Action::Output(9),
            Action::Track(Some(33)),
            Action::Output(7),
            Action::Resubmit(8),
            Action::Experimenter {
                vendor: 0x0102_0304,
                subtype: 1,
            },
            Action::Experimenter {
                vendor: NICIRA,
                subtype: 34,
            },
        ];
        assert_eq!(actions(&all).unwrap(), expected);
    }

    #[test]
    fn actions_that_lead_nowhere_are_refused() {
        let mut nested = output(1);
        for _ in 0..=DEPTH {
            nested = nicira(42, &[&[0; 6], &nested[..]].concat());
        }
        assert_eq!(actions(&nested), Err(WireError::Nested));
        assert!(matches!(
            actions(&[0, 0, 0, 0]),
            Err(WireError::Length { .. })
        ));
        assert_eq!(
            actions(&[0, 0, 0, 16, 0]),
            Err(WireError::Short("an action"))
        );
    }

    #[test]
    fn fields_of_a_match_are_read_with_their_masks() {
        let bytes = [
            &[0x80, 0, 0, 4, 0, 0, 0, 5][..],
            &[0x80, 0, 0x07, 12, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0],
            &[0xff, 0xff, 2, 6, 0, 0, 0x23, 0x20, 9, 9],
        ]
        .concat();
        let fields: Vec<_> = Match(&bytes).fields().map(Result::unwrap).collect();
        assert_eq!(fields.len(), 3);
        assert_eq!(fields[1].mask.unwrap(), [1, 0, 0, 0, 0, 0]);
        assert_eq!((fields[2].field, fields[2].value), (1, &[9, 9][..]));
        assert_eq!(Match(&bytes).in_port(), Some(5));
        // An odd mask, and an end that comes too early: one error, and no more.
        for bytes in [&[0x80, 0, 0x07, 3, 1, 2, 3][..], &[0x80, 0, 0, 9, 1]] {
            assert_eq!(Match(bytes).fields().filter(Result::is_err).count(), 1);
            assert_eq!(Match(bytes).in_port(), None);
        }
    }
}
