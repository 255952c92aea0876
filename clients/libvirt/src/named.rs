//! Numbers of libvirt that have names.

/// A number of libvirt that has names; what has none is kept as a number.
macro_rules! named {
    ($(
        $(#[$about:meta])*
        $name:ident { $($(#[$each:meta])* $variant:ident = $number:literal $text:literal;)* }
    )*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$each])* $variant,)*
            /// One that is newer than this crate.
            Other(i32),
        }

        impl $name {
            /// Its name in lower case.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Other(_) => "other",
                }
            }
        }

        impl $name {
            /// The number that libvirt has for it.
            pub fn number(self) -> i32 {
                match self {
                    $(Self::$variant => $number,)*
                    Self::Other(number) => number,
                }
            }
        }

        impl From<i32> for $name {
            fn from(number: i32) -> Self {
                match number {
                    $($number => Self::$variant,)*
                    other => Self::Other(other),
                }
            }
        }
    )*};
}
pub(crate) use named;
