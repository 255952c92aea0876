//! The statistics of one virtual machine, sorted so that looking one up is cheap.

use cobalt_libvirt::TypedValue;

/// `block.0.rd.bytes` is the field `rd.bytes` of the device 0 in the group `block`; `cpu.time` is of
/// no device.
type Key<'a> = (&'a str, Option<u32>, &'a str);

/// The statistics by their key.
#[derive(Debug)]
pub struct Params<'a>(Vec<(Key<'a>, &'a TypedValue)>);

impl<'a> Params<'a> {
    /// Sorts what libvirt has sent. If it has sent something twice, the first counts.
    pub fn new(params: impl Iterator<Item = (&'a str, &'a TypedValue)>) -> Self {
        let mut all: Vec<_> = params
            .filter_map(|(name, value)| Some((key(name)?, value)))
            .collect();
        all.sort_by_key(|(key, _)| *key);
        all.dedup_by_key(|(key, _)| *key);
        Self(all)
    }

    /// A number. What is negative or no number is not known.
    pub fn number(&self, group: &str, device: Option<u32>, field: &str) -> Option<u64> {
        self.get((group, device, field))?.as_u64()
    }

    /// A text.
    pub fn text(&self, group: &str, device: Option<u32>, field: &str) -> Option<&'a str> {
        self.get((group, device, field))?.as_str()
    }

    /// The devices of a group, in their order.
    pub fn devices(&self, group: &str) -> impl Iterator<Item = u32> {
        let from = self.0.partition_point(|((other, ..), _)| *other < group);
        let mut last = None;
        self.0
            .iter()
            .skip(from)
            .take_while(move |((other, ..), _)| *other == group)
            .filter_map(|((_, device, _), _)| *device)
            .filter(move |device| last.replace(*device) != Some(*device))
    }

    fn get(&self, key: Key<'_>) -> Option<&'a TypedValue> {
        let at = self.0.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        self.0.get(at).map(|(_, value)| *value)
    }
}

fn key(name: &str) -> Option<Key<'_>> {
    let (group, rest) = name.split_once('.')?;
    let device = rest
        .split_once('.')
        .and_then(|(device, field)| Some((device.parse().ok()?, field)));
    Some(match device {
        Some((device, field)) => (group, Some(device), field),
        None => (group, None, rest),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_width_are_read_and_what_is_none_is_not() {
        let values = [
            ("a.int", TypedValue::Int(1)),
            ("a.negative", TypedValue::Int(-1)),
            ("a.uint", TypedValue::UInt(2)),
            ("a.long", TypedValue::Long(3)),
            ("a.ulong", TypedValue::ULong(u64::MAX)),
            ("a.bool", TypedValue::Bool(true)),
            ("a.double", TypedValue::Double(0.5)),
            ("a.text", TypedValue::String("x".to_owned())),
            ("nogroup", TypedValue::Int(1)),
        ];
        let params = Params::new(values.iter().map(|(name, value)| (*name, value)));
        for (field, wanted) in [
            ("int", Some(1)),
            ("negative", None),
            ("uint", Some(2)),
            ("long", Some(3)),
            ("ulong", Some(u64::MAX)),
            ("bool", Some(1)),
            ("double", None),
            ("text", None),
            ("absent", None),
        ] {
            assert_eq!(params.number("a", None, field), wanted, "{field}");
        }
        assert_eq!(params.text("a", None, "text"), Some("x"));
    }

    #[test]
    fn devices_come_in_the_order_of_their_numbers_and_once() {
        let value = TypedValue::Int(7);
        let names = [
            "vcpu.current",
            "vcpu.10.time",
            "vcpu.2.time",
            "vcpu.2.state",
            "vcpu.x.time",
            "vcpua.1.time",
            "net.3.name",
        ];
        let params = Params::new(names.iter().map(|name| (*name, &value)));
        assert_eq!(params.devices("vcpu").collect::<Vec<_>>(), [2, 10]);
        assert_eq!(params.devices("block").count(), 0);
        assert_eq!(params.number("vcpu", Some(10), "time"), Some(7));
    }
}
