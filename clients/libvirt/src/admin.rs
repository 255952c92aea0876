//! libvirt's administration: a socket and a program of its own, for the host's root.

use std::path::Path;

use cobalt_wire::within;

use crate::connection::Client;
use crate::error::{Closed, Error};
use crate::host::Version;
use crate::options::Options;
use crate::procedure::{
    ADMIN_GET_LIB_VERSION, ADMIN_LIST_SERVERS, ADMIN_LOOKUP_SERVER, ADMIN_OPEN,
    ADMIN_UPDATE_TLS_FILES,
};
use crate::xdr::{Reader, Writer};

/// The server inside libvirtd that has the TLS port.
const MAIN_SERVER: &str = "libvirtd";

/// A connection to the administration of a libvirtd.
///
/// ```no_run
/// use std::path::Path;
/// use cobalt_libvirt::{AdminConnection, Options, Supported};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let socket = Path::new("/run/libvirt/libvirt-admin-sock");
/// let admin = AdminConnection::open(socket, &Options::default()).await?;
/// if admin.update_tls_files().await.supported()?.is_none() {
///     println!("this libvirtd must be restarted to see its new certificates");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct AdminConnection {
    client: Client,
}

impl AdminConnection {
    /// Connects to the socket, usually `/run/libvirt/libvirt-admin-sock`.
    pub async fn open(socket: &Path, options: &Options) -> Result<Self, Error> {
        let opening = async {
            let (input, output) = cobalt_wire::unix(socket).await?;
            let client = Client::start(input, output, options);
            client
                .call(ADMIN_OPEN, Writer::new().u32(0), |_| Ok(()))
                .await?;
            Ok(Self { client })
        };
        within(&socket.display(), options.connect_timeout, opening).await
    }

    /// The version of libvirt.
    pub async fn lib_version(&self) -> Result<Version, Error> {
        self.client
            .call(ADMIN_GET_LIB_VERSION, Writer::new(), |reader| {
                reader.u64().map(Version::from_number)
            })
            .await
    }

    /// The servers inside this daemon, for example `libvirtd` and `admin`.
    pub async fn servers(&self) -> Result<Vec<String>, Error> {
        let arguments = Writer::new().u32(1).u32(0);
        self.client
            .call(ADMIN_LIST_SERVERS, arguments, |reader| {
                reader.list(4, Reader::string)
            })
            .await
    }

    /// Makes libvirtd read its certificates again; connections that are there stay.
    pub async fn update_tls_files(&self) -> Result<(), Error> {
        self.update_tls_files_of(MAIN_SERVER).await
    }

    /// Makes a server inside this daemon read its certificates again.
    pub async fn update_tls_files_of(&self, server: &str) -> Result<(), Error> {
        let arguments = Writer::new().string(server).u32(0);
        let server = self
            .client
            .call(ADMIN_LOOKUP_SERVER, arguments, |reader| reader.string())
            .await?;
        let arguments = Writer::new().string(&server).u32(0);
        self.client
            .call(ADMIN_UPDATE_TLS_FILES, arguments, |_| Ok(()))
            .await
    }

    /// Waits until the connection is over, and says why.
    pub async fn closed(&self) -> Closed {
        self.client.closed().await
    }
}
