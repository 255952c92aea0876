//! Typed parameters: named values as statistics, jobs and migrations use them.

use crate::xdr::{Reader, Writer, XdrError, XdrResult};

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum TypedValue {
    /// A signed integer of 32 bits.
    Int(i32),
    /// An unsigned integer of 32 bits.
    UInt(u32),
    /// A signed integer of 64 bits.
    Long(i64),
    /// An unsigned integer of 64 bits.
    ULong(u64),
    /// A floating-point number.
    Double(f64),
    /// True or false.
    Bool(bool),
    /// A text.
    String(String),
}

impl TypedValue {
    /// As an unsigned integer, if it is an integer (or a boolean) that fits.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Int(value) => u64::try_from(value).ok(),
            Self::UInt(value) => Some(value.into()),
            Self::Long(value) => u64::try_from(value).ok(),
            Self::ULong(value) => Some(value),
            Self::Bool(value) => Some(value.into()),
            Self::Double(_) | Self::String(_) => None,
        }
    }

    /// As a signed integer, if it is an integer (or a boolean) that fits.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::Int(value) => Some(value.into()),
            Self::UInt(value) => Some(value.into()),
            Self::Long(value) => Some(value),
            Self::ULong(value) => i64::try_from(value).ok(),
            Self::Bool(value) => Some(value.into()),
            Self::Double(_) | Self::String(_) => None,
        }
    }

    /// As a floating-point number, if it is any number. Large integers lose their last digits.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::Int(value) => Some(value.into()),
            Self::UInt(value) => Some(value.into()),
            Self::Long(value) => Some(value as f64),
            Self::ULong(value) => Some(value as f64),
            Self::Double(value) => Some(value),
            Self::Bool(value) => Some(f64::from(u8::from(value))),
            Self::String(_) => None,
        }
    }

    /// As true or false: a boolean, or an integer that is not 0.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(value) => Some(value),
            _ => self.as_i64().map(|value| value != 0),
        }
    }

    /// As a text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    fn read(reader: &mut Reader<'_>) -> XdrResult<Self> {
        Ok(match reader.i32()? {
            1 => Self::Int(reader.i32()?),
            2 => Self::UInt(reader.u32()?),
            3 => Self::Long(reader.i64()?),
            4 => Self::ULong(reader.u64()?),
            5 => Self::Double(reader.f64()?),
            6 => Self::Bool(reader.bool()?),
            7 => Self::String(reader.string()?),
            value => {
                return Err(XdrError::Unknown {
                    what: "the type of a parameter",
                    value,
                });
            }
        })
    }

    fn write(&self, writer: Writer) -> Writer {
        match self {
            Self::Int(value) => writer.i32(1).i32(*value),
            Self::UInt(value) => writer.i32(2).u32(*value),
            Self::Long(value) => writer.i32(3).i64(*value),
            Self::ULong(value) => writer.i32(4).u64(*value),
            Self::Double(value) => writer.i32(5).f64(*value),
            Self::Bool(value) => writer.i32(6).bool(*value),
            Self::String(value) => writer.i32(7).string(value),
        }
    }
}

macro_rules! from {
    ($($type:ty => $variant:ident),*) => {
        $(impl From<$type> for TypedValue {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        })*
    };
}
from!(i32 => Int, u32 => UInt, i64 => Long, u64 => ULong, f64 => Double, bool => Bool,
      String => String, &str => String);

/// Named values in the order in which they were sent.
///
/// Versions of libvirt do not agree on the types of some of them, so the readers take any integer
/// that fits:
///
/// ```
/// use cobalt_libvirt::TypedParams;
///
/// let params = TypedParams::default().with("state.state", 1).with("vcpu.current", 2u32);
/// assert_eq!(params.get_u64("state.state"), Some(1));
/// assert_eq!(params.get_i64("vcpu.current"), Some(2));
/// assert_eq!(params.get_str("vcpu.current"), None);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TypedParams(Vec<(String, TypedValue)>);

impl TypedParams {
    /// The first value of this name.
    pub fn get(&self, name: &str) -> Option<&TypedValue> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
    }

    /// An unsigned integer; see [`TypedValue::as_u64`].
    pub fn get_u64(&self, name: &str) -> Option<u64> {
        self.get(name)?.as_u64()
    }

    /// A signed integer; see [`TypedValue::as_i64`].
    pub fn get_i64(&self, name: &str) -> Option<i64> {
        self.get(name)?.as_i64()
    }

    /// A number; see [`TypedValue::as_f64`].
    pub fn get_f64(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    /// True or false; see [`TypedValue::as_bool`].
    pub fn get_bool(&self, name: &str) -> Option<bool> {
        self.get(name)?.as_bool()
    }

    /// A text.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    /// All of them, as sent. A name may come more than once.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &TypedValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same with one more at the end.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<TypedValue>) -> Self {
        self.0.push((name.into(), value.into()));
        self
    }

    pub(crate) fn extend(&mut self, more: &Self) {
        self.0.extend_from_slice(&more.0);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> XdrResult<Self> {
        // An empty name, a type, a value of 32 bits.
        const SMALLEST: usize = 4 + 4 + 4;
        let read = |reader: &mut Reader<'_>| Ok((reader.string()?, TypedValue::read(reader)?));
        Ok(Self(reader.list(SMALLEST, read)?))
    }

    pub(crate) fn write(&self, writer: Writer) -> Writer {
        writer.list(&self.0, |writer, (name, value)| {
            value.write(writer.string(name))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn w61_a_number_is_found_whatever_integer_it_was_sent_as() {
        let params = TypedParams::default()
            .with("int", -1)
            .with("uint", 2_u32)
            .with("long", 3_i64)
            .with("ulong", u64::MAX)
            .with("double", 0.5)
            .with("bool", true)
            .with("string", "7");
        for (name, unsigned, signed, truth) in [
            ("int", None, Some(-1), Some(true)),
            ("uint", Some(2), Some(2), Some(true)),
            ("long", Some(3), Some(3), Some(true)),
            ("ulong", Some(u64::MAX), None, None),
            ("double", None, None, None),
            ("bool", Some(1), Some(1), Some(true)),
            ("string", None, None, None),
            ("absent", None, None, None),
        ] {
            assert_eq!(params.get_u64(name), unsigned, "{name}");
            assert_eq!(params.get_i64(name), signed, "{name}");
            assert_eq!(params.get_bool(name), truth, "{name}");
        }
        assert_eq!(params.get_f64("double"), Some(0.5));
        assert_eq!(params.get_f64("int"), Some(-1.0));
        assert_eq!(params.get_str("string"), Some("7"));
        assert_eq!(params.len(), 7);
    }

    #[test]
    fn an_unknown_type_is_told() {
        let bytes = Writer::new()
            .u32(1)
            .string("odd")
            .i32(8)
            .u64(1)
            .into_bytes();
        let unknown = XdrError::Unknown {
            what: "the type of a parameter",
            value: 8,
        };
        assert_eq!(TypedParams::read(&mut Reader::new(&bytes)), Err(unknown));
    }

    fn value() -> impl Strategy<Value = TypedValue> {
        prop_oneof![
            any::<i32>().prop_map(TypedValue::Int),
            any::<u32>().prop_map(TypedValue::UInt),
            any::<i64>().prop_map(TypedValue::Long),
            any::<u64>().prop_map(TypedValue::ULong),
            proptest::num::f64::NORMAL.prop_map(TypedValue::Double),
            any::<bool>().prop_map(TypedValue::Bool),
            ".{0,20}".prop_map(TypedValue::String),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            values in proptest::collection::vec((".{0,10}", value()), 0..10),
        ) {
            let params = TypedParams(values);
            let bytes = params.write(Writer::new()).into_bytes();
            prop_assert_eq!(TypedParams::read(&mut Reader::new(&bytes)).unwrap(), params);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(TypedParams::read(&mut Reader::new(&bytes)));
        }
    }
}
