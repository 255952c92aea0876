//! Values of OVSDB: atoms, sets, maps (RFC 7047, section 5.1).

use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// A single value.
#[derive(Debug, Clone, PartialEq)]
pub enum Atom {
    /// An integer.
    Integer(i64),
    /// A real number.
    Real(f64),
    /// True or false.
    Boolean(bool),
    /// A text.
    String(String),
    /// A row of some table.
    Uuid(Uuid),
    /// A row that the same transaction inserts, by the name that it is given there.
    Named(String),
}

/// What a column holds.
///
/// A set of one element is written like the element alone; [`Value::atoms`] makes no difference.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// One atom.
    Atom(Atom),
    /// A set, also the empty one, which stands for the absence of an optional value.
    Set(Vec<Atom>),
    /// A map.
    Map(Vec<(Atom, Atom)>),
}

impl Value {
    /// The empty set.
    pub const EMPTY: Self = Self::Set(Vec::new());

    /// A map of texts, such as `external_ids`.
    pub fn string_map<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let pair = |(key, value): (&str, &str)| (Atom::from(key), Atom::from(value));
        Self::Map(pairs.into_iter().map(pair).collect())
    }

    /// A set.
    pub fn set<T: Into<Atom>>(atoms: impl IntoIterator<Item = T>) -> Self {
        Self::Set(atoms.into_iter().map(Into::into).collect())
    }

    /// The atom, or the elements of the set; none for a map.
    pub fn atoms(&self) -> &[Atom] {
        match self {
            Self::Atom(atom) => std::slice::from_ref(atom),
            Self::Set(atoms) => atoms,
            Self::Map(_) => &[],
        }
    }

    /// The only atom, if there is exactly one.
    pub fn atom(&self) -> Option<&Atom> {
        match self.atoms() {
            [atom] => Some(atom),
            _ => None,
        }
    }
}

impl<T: Into<Atom>> From<T> for Value {
    fn from(atom: T) -> Self {
        Self::Atom(atom.into())
    }
}

impl From<i64> for Atom {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<f64> for Atom {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<bool> for Atom {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

impl From<&str> for Atom {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}

impl From<String> for Atom {
    fn from(value: String) -> Self {
        Self::String(value)
    }
}

impl From<Uuid> for Atom {
    fn from(value: Uuid) -> Self {
        Self::Uuid(value)
    }
}

/// A Rust type of an atom.
pub trait FromAtom: Sized {
    /// The value, if the atom is of this type.
    fn from_atom(atom: &Atom) -> Option<Self>;
}

impl FromAtom for i64 {
    fn from_atom(atom: &Atom) -> Option<Self> {
        match atom {
            Atom::Integer(value) => Some(*value),
            _ => None,
        }
    }
}

impl FromAtom for f64 {
    fn from_atom(atom: &Atom) -> Option<Self> {
        match atom {
            Atom::Real(value) => Some(*value),
            // A real number without a fraction looks like this. None of interest is so large that
            // this loses anything.
            #[allow(clippy::cast_precision_loss)]
            Atom::Integer(value) => Some(*value as Self),
            _ => None,
        }
    }
}

impl FromAtom for bool {
    fn from_atom(atom: &Atom) -> Option<Self> {
        match atom {
            Atom::Boolean(value) => Some(*value),
            _ => None,
        }
    }
}

impl FromAtom for String {
    fn from_atom(atom: &Atom) -> Option<Self> {
        match atom {
            Atom::String(value) => Some(value.clone()),
            _ => None,
        }
    }
}

impl FromAtom for Uuid {
    fn from_atom(atom: &Atom) -> Option<Self> {
        match atom {
            Atom::Uuid(value) => Some(*value),
            _ => None,
        }
    }
}

fn tagged<S: Serializer, T: Serialize + ?Sized>(
    serializer: S,
    tag: &str,
    value: &T,
) -> Result<S::Ok, S::Error> {
    let mut tuple = serializer.serialize_tuple(2)?;
    tuple.serialize_element(tag)?;
    tuple.serialize_element(value)?;
    tuple.end()
}

impl Serialize for Atom {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Integer(value) => serializer.serialize_i64(*value),
            Self::Real(value) => serializer.serialize_f64(*value),
            Self::Boolean(value) => serializer.serialize_bool(*value),
            Self::String(value) => serializer.serialize_str(value),
            Self::Uuid(value) => tagged(serializer, "uuid", value),
            Self::Named(value) => tagged(serializer, "named-uuid", value),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Atom(atom) => atom.serialize(serializer),
            Self::Set(atoms) => tagged(serializer, "set", atoms),
            Self::Map(pairs) => tagged(serializer, "map", pairs),
        }
    }
}

impl<'de> Deserialize<'de> for Atom {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Atom(atom) => Ok(atom),
            _ => Err(D::Error::custom("a set or a map where one value belongs")),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of OVSDB")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        let value = i64::try_from(value).map_err(|_| E::custom("an integer that is too large"))?;
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Value, A::Error> {
        let short = || A::Error::custom("a list that is too short for a value of OVSDB");
        let tag: Tag = parts.next_element()?.ok_or_else(short)?;
        let value = match tag {
            Tag::Uuid => Atom::Uuid(parts.next_element()?.ok_or_else(short)?).into(),
            Tag::Named => Atom::Named(parts.next_element()?.ok_or_else(short)?).into(),
            Tag::Set => Value::Set(parts.next_element()?.ok_or_else(short)?),
            Tag::Map => Value::Map(parts.next_element()?.ok_or_else(short)?),
        };
        match parts.next_element::<serde::de::IgnoredAny>()? {
            None => Ok(value),
            Some(_) => Err(A::Error::custom(
                "a list that is too long for a value of OVSDB",
            )),
        }
    }
}

/// What a list is.
enum Tag {
    Uuid,
    Named,
    Set,
    Map,
}

impl<'de> Deserialize<'de> for Tag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TagVisitor)
    }
}

struct TagVisitor;

impl Visitor<'_> for TagVisitor {
    type Value = Tag;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("uuid, named-uuid, set or map")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Tag, E> {
        match text {
            "uuid" => Ok(Tag::Uuid),
            "named-uuid" => Ok(Tag::Named),
            "set" => Ok(Tag::Set),
            "map" => Ok(Tag::Map),
            other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn values_are_read_as_the_server_writes_them() {
        let uuid = "604144e0-4aa0-41fd-8c25-e82163c015b1";
        assert_eq!(read("10"), Value::from(10));
        assert_eq!(read("-1.5"), Value::from(-1.5));
        assert_eq!(read("true"), Value::from(true));
        assert_eq!(read("\"up\""), Value::from("up"));
        assert_eq!(read("[\"set\",[]]"), Value::EMPTY);
        assert_eq!(read("[\"set\",[1,2]]"), Value::set([1, 2]));
        assert_eq!(
            read(&format!("[\"uuid\",\"{uuid}\"]")),
            Value::from(uuid.parse::<Uuid>().unwrap())
        );
        assert_eq!(
            read("[\"map\",[[\"a\",\"b\"]]]"),
            Value::string_map([("a", "b")])
        );
        assert_eq!(
            read("[\"map\",[[0,true]]]"),
            Value::Map(vec![(0.into(), true.into())])
        );
    }

    #[test]
    fn what_is_no_value_is_an_error() {
        for text in [
            "null",
            "{}",
            "[]",
            "[\"uuid\"]",
            "[\"uuid\",\"x\"]",
            "[\"set\",[],1]",
            "[\"set\",[[\"set\",[]]]]",
            "[\"map\",[[1]]]",
            "[\"bag\",[]]",
            "[1,2]",
            "18446744073709551615",
        ] {
            assert!(serde_json::from_str::<Value>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_set_of_one_is_like_its_element() {
        assert_eq!(Value::from(1).atoms(), Value::set([1]).atoms());
        assert_eq!(Value::set([1]).atom(), Some(&Atom::Integer(1)));
        assert_eq!(Value::EMPTY.atom(), None);
        assert_eq!(Value::set([1, 2]).atom(), None);
        assert_eq!(Value::string_map([("a", "b")]).atoms(), &[]);
        assert_eq!(f64::from_atom(&Atom::Integer(3)), Some(3.0));
    }

    fn atom() -> impl Strategy<Value = Atom> {
        prop_oneof![
            any::<i64>().prop_map(Atom::Integer),
            any::<bool>().prop_map(Atom::Boolean),
            ".{0,8}".prop_map(Atom::String),
            any::<u128>().prop_map(|bits| Atom::Uuid(Uuid::from_u128(bits))),
            "[a-z]{1,8}".prop_map(Atom::Named),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            atom in atom(),
            set in proptest::collection::vec(atom(), 0..4),
            map in proptest::collection::vec((atom(), atom()), 0..4),
        ) {
            for value in [Value::Atom(atom), Value::Set(set), Value::Map(map)] {
                let text = serde_json::to_string(&value).unwrap();
                prop_assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
            }
        }

        #[test]
        fn no_text_panics(text in "[\\[\\]{}\",:a-z0-9 ]{0,60}") {
            drop(serde_json::from_str::<Value>(&text));
        }
    }
}
