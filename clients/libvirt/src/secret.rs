//! Secrets that libvirt keeps for its domains, for example the key of a Ceph user.

use std::fmt;

use uuid::Uuid;

use crate::connection::Connection;
use crate::error::Error;
use crate::named::named;
use crate::procedure::{
    CONNECT_LIST_ALL_SECRETS, SECRET_DEFINE_XML, SECRET_GET_VALUE, SECRET_GET_XML_DESC,
    SECRET_LOOKUP_BY_USAGE, SECRET_LOOKUP_BY_UUID, SECRET_SET_VALUE, SECRET_UNDEFINE,
};
use crate::xdr::{Reader, Writer, XdrResult};

/// The size of the smallest: the UUID, the usage, an empty id.
pub(crate) const SMALLEST: usize = 16 + 4 + 4;

named! {
    /// What a secret is for.
    SecretUsage {
        /// Anything.
        None = 0 "none";
        /// A volume.
        Volume = 1 "volume";
        /// A Ceph user.
        Ceph = 2 "ceph";
        /// An iSCSI target.
        Iscsi = 3 "iscsi";
        /// A key of TLS.
        Tls = 4 "tls";
        /// A virtual TPM.
        Vtpm = 5 "vtpm";
    }
}

/// A secret; its value is elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Secret {
    /// Its UUID.
    pub uuid: Uuid,
    /// What it is for.
    pub usage: SecretUsage,
    /// Which one of those.
    pub usage_id: String,
}

/// The value of a secret. It shows itself to nobody but who asks for it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Vec<u8>);

impl SecretValue {
    /// The value.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue")
    }
}

impl Connection {
    /// Lists the secrets.
    pub async fn secrets(&self) -> Result<Vec<Secret>, Error> {
        let arguments = Writer::new().bool(true).u32(0);
        self.client
            .call(CONNECT_LIST_ALL_SECRETS, arguments, |reader| {
                reader.list(SMALLEST, read)
            })
            .await
    }

    /// Finds a secret. See [`Error::is_no_secret`] for one that is not there.
    pub async fn secret_lookup_by_uuid(&self, uuid: Uuid) -> Result<Secret, Error> {
        let arguments = Writer::new().uuid(uuid);
        self.client
            .call(SECRET_LOOKUP_BY_UUID, arguments, read)
            .await
    }

    /// Finds a secret by what it is for. See [`Error::is_no_secret`] for one that is not there.
    pub async fn secret_lookup_by_usage(
        &self,
        usage: SecretUsage,
        usage_id: &str,
    ) -> Result<Secret, Error> {
        let arguments = Writer::new().i32(usage.number()).string(usage_id);
        self.client
            .call(SECRET_LOOKUP_BY_USAGE, arguments, read)
            .await
    }

    /// Defines a secret, or changes it; its value is set apart.
    pub async fn secret_define_xml(&self, xml: &str) -> Result<Secret, Error> {
        let arguments = Writer::new().string(xml).u32(0);
        self.client.call(SECRET_DEFINE_XML, arguments, read).await
    }

    /// Reads all about a secret but its value.
    pub async fn secret_xml(&self, secret: &Secret) -> Result<String, Error> {
        let arguments = write(Writer::new(), secret).u32(0);
        self.client
            .call(SECRET_GET_XML_DESC, arguments, |reader| reader.string())
            .await
    }

    /// Sets the value of a secret.
    pub async fn secret_set_value(&self, secret: &Secret, value: &[u8]) -> Result<(), Error> {
        let arguments = write(Writer::new(), secret).bytes(value).u32(0);
        self.client
            .call(SECRET_SET_VALUE, arguments, |_| Ok(()))
            .await
    }

    /// Reads the value of a secret. libvirt refuses it for a private one.
    pub async fn secret_get_value(&self, secret: &Secret) -> Result<SecretValue, Error> {
        let arguments = write(Writer::new(), secret).u32(0);
        self.client
            .call(SECRET_GET_VALUE, arguments, |reader| {
                reader.bytes().map(|value| SecretValue(value.to_vec()))
            })
            .await
    }

    /// Forgets a secret and its value.
    pub async fn secret_undefine(&self, secret: &Secret) -> Result<(), Error> {
        let arguments = write(Writer::new(), secret);
        self.client
            .call(SECRET_UNDEFINE, arguments, |_| Ok(()))
            .await
    }
}

pub(crate) fn read(reader: &mut Reader<'_>) -> XdrResult<Secret> {
    Ok(Secret {
        uuid: reader.uuid()?,
        usage: reader.i32()?.into(),
        usage_id: reader.string()?,
    })
}

fn write(writer: Writer, secret: &Secret) -> Writer {
    writer
        .uuid(secret.uuid)
        .i32(secret.usage.number())
        .string(&secret.usage_id)
}
