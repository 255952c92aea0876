//! Fields of typed rows: how a column's value, or the change of it, gets into a Rust type.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::value::{FromAtom, Value};

/// What a column holds, as far as changes of it look different.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// At most one value. A change is the new value.
    Single,
    /// Any number of values. A change names those that come or go.
    Set,
    /// Pairs. A change names those that come, change or go.
    Map,
}

/// A Rust type for a column.
pub trait Field: Default + PartialEq {
    /// Which columns it is for.
    const KIND: Kind;

    /// Takes a value. What does not fit leaves the field empty, and gives `false`.
    fn set(&mut self, value: &Value) -> bool;

    /// Takes a change of the value that is there; `false` if it does not fit.
    fn change(&mut self, value: &Value) -> bool {
        self.set(value)
    }
}

macro_rules! scalar_fields {
    ($($scalar:ty),*) => { $(
        impl Field for $scalar {
            const KIND: Kind = Kind::Single;

            fn set(&mut self, value: &Value) -> bool {
                let read = value.atom().and_then(<$scalar>::from_atom);
                let fits = read.is_some();
                *self = read.unwrap_or_default();
                fits
            }
        }
    )* };
}

scalar_fields!(i64, f64, bool, String, Uuid);

impl<T: FromAtom + PartialEq> Field for Option<T> {
    const KIND: Kind = Kind::Single;

    fn set(&mut self, value: &Value) -> bool {
        *self = value.atom().and_then(T::from_atom);
        self.is_some() || matches!(value, Value::Set(atoms) if atoms.is_empty())
    }
}

impl<T: FromAtom + Ord> Field for BTreeSet<T> {
    const KIND: Kind = Kind::Set;

    fn set(&mut self, value: &Value) -> bool {
        self.clear();
        self.change(value)
    }

    fn change(&mut self, value: &Value) -> bool {
        let mut fits = !matches!(value, Value::Map(_));
        for atom in value.atoms() {
            match T::from_atom(atom) {
                Some(element) => {
                    if !self.remove(&element) {
                        self.insert(element);
                    }
                }
                None => fits = false,
            }
        }
        fits
    }
}

impl<K: FromAtom + Ord, V: FromAtom + PartialEq> Field for BTreeMap<K, V> {
    const KIND: Kind = Kind::Map;

    fn set(&mut self, value: &Value) -> bool {
        self.clear();
        self.change(value)
    }

    fn change(&mut self, value: &Value) -> bool {
        let pairs = match value {
            Value::Map(pairs) => pairs,
            // The empty set and the empty map look the same to some programs.
            Value::Set(atoms) => return atoms.is_empty(),
            Value::Atom(_) => return false,
        };
        let mut fits = true;
        for (key, value) in pairs {
            match (K::from_atom(key), V::from_atom(value)) {
                (Some(key), Some(value)) => {
                    if self.get(&key) == Some(&value) {
                        self.remove(&key);
                    } else {
                        self.insert(key, value);
                    }
                }
                _ => fits = false,
            }
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Value {
        Value::string_map(pairs.iter().copied())
    }

    #[test]
    fn single_values_are_replaced() {
        let mut number = 0_i64;
        assert!(number.set(&Value::from(3)) && number == 3);
        assert!(number.change(&Value::from(4)) && number == 4);
        assert!(!number.set(&Value::from("x")) && number == 0);
        let mut maybe = Some(1_i64);
        assert!(maybe.change(&Value::EMPTY) && maybe.is_none());
        assert!(maybe.change(&Value::from(2)) && maybe == Some(2));
        assert!(maybe.change(&Value::set([3])) && maybe == Some(3));
        assert!(!maybe.set(&Value::set([3, 4])) && maybe.is_none());
        assert!(!maybe.set(&Value::from("x")) && maybe.is_none());
    }

    #[test]
    fn a_change_of_a_map_adds_replaces_and_removes() {
        let mut ids = BTreeMap::<String, String>::new();
        assert!(ids.set(&map(&[("a", "1"), ("b", "2")])));
        assert!(ids.change(&map(&[("a", "1"), ("b", "3"), ("c", "4")])));
        let expected = [("b", "3"), ("c", "4")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(ids, expected.into());
        assert!(ids.set(&Value::EMPTY) && ids.is_empty());
        assert!(!ids.set(&Value::from("x")));
        assert!(!ids.set(&Value::Map(vec![("a".into(), 1.into())])));
    }

    proptest! {
        /// What a server sends as the difference of two sets turns the one into the other.
        #[test]
        fn a_change_of_a_set_is_the_difference(
            old in proptest::collection::btree_set(0..20_i64, 0..10),
            new in proptest::collection::btree_set(0..20_i64, 0..10),
        ) {
            let difference = Value::set(old.symmetric_difference(&new).copied());
            let mut field = old.clone();
            prop_assert!(field.change(&difference));
            prop_assert_eq!(&field, &new);
            prop_assert!(field.set(&Value::set(old.iter().copied())));
            prop_assert_eq!(&field, &old);
        }

        #[test]
        fn a_change_of_a_map_is_the_difference(
            old in proptest::collection::btree_map(0..20_i64, 0..3_i64, 0..10),
            new in proptest::collection::btree_map(0..20_i64, 0..3_i64, 0..10),
        ) {
            let gone = old.iter().filter(|(key, _)| !new.contains_key(key));
            let come = new.iter().filter(|(key, value)| old.get(key) != Some(value));
            let pairs = gone.chain(come).map(|(&key, &value)| (key.into(), value.into()));
            let mut field = old.clone();
            prop_assert!(field.change(&Value::Map(pairs.collect())));
            prop_assert_eq!(&field, &new);
        }
    }
}
