//! XDR (RFC 4506) as libvirt uses it: a reader that trusts nothing, and a writer.

use thiserror::Error;
use uuid::Uuid;

use crate::domain::Domain;

/// Bytes that are not what the protocol says.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum XdrError {
    /// It ends too early.
    #[error("it ends after {left} bytes where {needed} more are due")]
    Truncated {
        /// How many bytes the next item has.
        needed: usize,
        /// How many there are.
        left: usize,
    },
    /// A union or an enumeration has a value that nobody has told us of, so its size is unknown.
    #[error("{what} has the unknown value {value}")]
    Unknown {
        /// What it is.
        what: &'static str,
        /// The value.
        value: i32,
    },
    /// An answer to something else came under the number of this question.
    #[error("it answers another question")]
    Mismatch,
}

/// Result of reading.
pub type XdrResult<T> = Result<T, XdrError>;

/// The size of the smallest domain: an empty name, the UUID, the id.
pub const SMALLEST_DOMAIN: usize = 4 + 16 + 4;

/// Reads items from the front of a message.
///
/// Every length is compared with what is left before anything is allocated, so a message can make
/// us allocate only a small multiple of its own size.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self, needed: usize) -> XdrResult<&'a [u8]> {
        let truncated = XdrError::Truncated {
            needed,
            left: self.rest.len(),
        };
        let (taken, rest) = self.rest.split_at_checked(needed).ok_or(truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> XdrResult<[u8; N]> {
        let left = self.rest.len();
        let (taken, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(XdrError::Truncated { needed: N, left })?;
        self.rest = rest;
        Ok(*taken)
    }

    /// An unsigned integer of 32 bits.
    pub fn u32(&mut self) -> XdrResult<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// A signed integer of 32 bits.
    pub fn i32(&mut self) -> XdrResult<i32> {
        self.array().map(i32::from_be_bytes)
    }

    /// An unsigned integer of 64 bits.
    pub fn u64(&mut self) -> XdrResult<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A signed integer of 64 bits.
    pub fn i64(&mut self) -> XdrResult<i64> {
        self.array().map(i64::from_be_bytes)
    }

    /// A floating-point number of 64 bits.
    pub fn f64(&mut self) -> XdrResult<f64> {
        self.array().map(f64::from_be_bytes)
    }

    /// A boolean. libvirt sends them as integers, so everything but 0 is true.
    pub fn bool(&mut self) -> XdrResult<bool> {
        Ok(self.i32()? != 0)
    }

    /// Bytes with their length before and padding after them.
    pub fn bytes(&mut self) -> XdrResult<&'a [u8]> {
        let length = self.length()?;
        let bytes = self.take(length)?;
        self.take(padding(length))?;
        Ok(bytes)
    }

    /// A text. What is not UTF-8 is replaced: it came from a guest or from a file name.
    pub fn string(&mut self) -> XdrResult<String> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// A UUID.
    pub fn uuid(&mut self) -> XdrResult<Uuid> {
        self.array().map(Uuid::from_bytes)
    }

    /// Something that may be absent.
    pub fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> XdrResult<T>,
    ) -> XdrResult<Option<T>> {
        if self.bool()? {
            read(self).map(Some)
        } else {
            Ok(None)
        }
    }

    /// A list whose items have at least `smallest` bytes each.
    pub fn list<T>(
        &mut self,
        smallest: usize,
        mut read: impl FnMut(&mut Self) -> XdrResult<T>,
    ) -> XdrResult<Vec<T>> {
        let count = self.length()?;
        let needed = count.saturating_mul(smallest.max(1));
        let left = self.rest.len();
        if needed > left {
            return Err(XdrError::Truncated { needed, left });
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(read(self)?);
        }
        Ok(items)
    }

    /// A domain.
    pub fn domain(&mut self) -> XdrResult<Domain> {
        Ok(Domain {
            name: self.string()?,
            uuid: self.uuid()?,
            // A domain that does not run has the id -1.
            id: u32::try_from(self.i32()?).ok(),
        })
    }

    fn length(&mut self) -> XdrResult<usize> {
        // On a machine where it does not fit it is more than there can be.
        Ok(usize::try_from(self.u32()?).unwrap_or(usize::MAX))
    }
}

/// Writes items one after the other.
///
/// It has no `Debug` that shows the bytes: they may be a secret.
#[derive(Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Writer({} bytes)", self.bytes.len())
    }
}

impl Writer {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// An unsigned integer of 32 bits.
    pub fn u32(self, value: u32) -> Self {
        self.raw(&value.to_be_bytes())
    }

    /// A signed integer of 32 bits.
    pub fn i32(self, value: i32) -> Self {
        self.raw(&value.to_be_bytes())
    }

    /// An unsigned integer of 64 bits.
    pub fn u64(self, value: u64) -> Self {
        self.raw(&value.to_be_bytes())
    }

    /// A signed integer of 64 bits.
    pub fn i64(self, value: i64) -> Self {
        self.raw(&value.to_be_bytes())
    }

    /// A floating-point number of 64 bits.
    pub fn f64(self, value: f64) -> Self {
        self.raw(&value.to_be_bytes())
    }

    /// A boolean.
    pub fn bool(self, value: bool) -> Self {
        self.i32(i32::from(value))
    }

    /// Bytes with their length before and padding after them.
    pub fn bytes(self, bytes: &[u8]) -> Self {
        // More than 4 GiB is far above the bound of a message, which is checked before it is sent.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut writer = self.u32(length).raw(bytes);
        let padded = writer.bytes.len() + padding(bytes.len());
        writer.bytes.resize(padded, 0);
        writer
    }

    /// A text.
    pub fn string(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    /// A text that may be absent.
    pub fn optional_string(self, text: Option<&str>) -> Self {
        match text {
            None => self.bool(false),
            Some(text) => self.bool(true).string(text),
        }
    }

    /// A UUID.
    pub fn uuid(self, uuid: Uuid) -> Self {
        self.raw(uuid.as_bytes())
    }

    /// A list.
    pub fn list<T>(self, items: &[T], write: impl Fn(Self, &T) -> Self) -> Self {
        let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
        items.iter().fold(self.u32(count), write)
    }

    /// A domain.
    pub fn domain(self, domain: &Domain) -> Self {
        let id = domain.id.and_then(|id| i32::try_from(id).ok());
        self.string(&domain.name)
            .uuid(domain.uuid)
            .i32(id.unwrap_or(-1))
    }
}

/// How many bytes follow so that the next item begins at a multiple of four.
fn padding(length: usize) -> usize {
    // Not `next_multiple_of`: that overflows for lengths at the end of the range.
    (4 - length % 4) % 4
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn items_have_the_form_of_the_standard() {
        let bytes = Writer::new()
            .u32(1)
            .i32(-2)
            .u64(3)
            .bool(true)
            .string("abcde")
            .optional_string(None)
            .optional_string(Some(""))
            .into_bytes();
        let expected: &[&[u8]] = &[
            &[0, 0, 0, 1],
            &[0xff, 0xff, 0xff, 0xfe],
            &[0, 0, 0, 0, 0, 0, 0, 3],
            &[0, 0, 0, 1],
            &[0, 0, 0, 5],
            b"abcde\0\0\0",
            &[0, 0, 0, 0],
            &[0, 0, 0, 1],
            &[0, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn a_length_is_compared_with_what_is_left_before_anything_is_allocated() {
        let huge = Writer::new().u32(u32::MAX).u32(0).into_bytes();
        assert!(matches!(
            Reader::new(&huge).bytes(),
            Err(XdrError::Truncated { left: 4, .. })
        ));
        let list = Reader::new(&huge).list(SMALLEST_DOMAIN, Reader::domain);
        assert!(matches!(list, Err(XdrError::Truncated { left: 4, .. })));
        // Items without a size cannot be a way around it.
        let list = Reader::new(&huge).list(0, |_| Ok(()));
        assert!(matches!(list, Err(XdrError::Truncated { left: 4, .. })));
    }

    #[test]
    fn missing_padding_is_noticed() {
        let bytes = [0, 0, 0, 1, b'a', 0];
        assert_eq!(
            Reader::new(&bytes).bytes(),
            Err(XdrError::Truncated { needed: 3, left: 1 })
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            text in ".{0,40}",
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
            number in any::<i64>(),
            double in any::<u64>(),
            name in ".{0,20}",
            uuid in any::<u128>(),
            id in proptest::option::of(0..i32::MAX),
        ) {
            let domain = Domain {
                name,
                uuid: Uuid::from_u128(uuid),
                id: id.and_then(|id| u32::try_from(id).ok()),
            };
            let written = Writer::new()
                .string(&text)
                .bytes(&bytes)
                .i64(number)
                .f64(f64::from_bits(double))
                .list(std::slice::from_ref(&domain), Writer::domain)
                .into_bytes();
            prop_assert_eq!(written.len() % 4, 0);
            let mut reader = Reader::new(&written);
            prop_assert_eq!(reader.string().unwrap(), text);
            prop_assert_eq!(reader.bytes().unwrap(), bytes);
            prop_assert_eq!(reader.i64().unwrap(), number);
            prop_assert_eq!(reader.f64().unwrap().to_bits(), double);
            let domains = reader.list(SMALLEST_DOMAIN, Reader::domain).unwrap();
            prop_assert_eq!(domains, vec![domain]);
            prop_assert!(reader.rest.is_empty());
        }
    }
}
