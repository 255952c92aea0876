//! Enums whose variants are strings on the wire: one table per enum gives both directions.

use std::fmt;

/// A string that is none of an enum's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// Which set of names was searched, for example `Reason`.
    pub set: &'static str,
    /// What was looked up.
    pub name: String,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a known {}", self.name, self.set)
    }
}

impl std::error::Error for UnknownName {}

/// Declares an enum together with the string of each variant.
macro_rules! string_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident => $string:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            ::serde::Serialize, ::serde::Deserialize, ::schemars::JsonSchema,
        )]
        pub enum $name {
            $($(#[$variant_meta])* #[serde(rename = $string)] $variant,)+
        }

        impl $name {
            /// Every variant, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The string on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $string,)+
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                match name {
                    $($string => Ok(Self::$variant),)+
                    _ => Err($crate::UnknownName { set: stringify!($name), name: name.to_owned() }),
                }
            }
        }
    };
}
pub(crate) use string_enum;
