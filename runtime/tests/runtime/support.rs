//! What the tests share: the API server, a namespace each, and a way to it that can be cut.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cobalt_lab::testing::{ApiServer, api_server};
use cobalt_runtime::client_from_config;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::config::Kubeconfig;
use kube::{Api, Client, Config};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OnceCell, watch};
use tokio::task::{JoinHandle, JoinSet};

/// Everything that is waited for, on a machine where other tests build.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The API server. Each test has its own client, because a client belongs to the runtime of its
/// test.
pub async fn server() -> (&'static ApiServer, Client) {
    static SERVER: OnceCell<ApiServer> = OnceCell::const_new();
    let start = async || api_server().await.unwrap();
    let server = SERVER.get_or_init(start).await;
    (server, server.client().await.unwrap())
}

/// A name that no other test uses.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{number}", std::process::id())
}

/// A namespace that no other test uses.
pub async fn namespace(client: &Client, prefix: &str) -> String {
    let name = unique(prefix);
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.clone());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let created = namespaces.create(&PostParams::default(), &namespace).await;
    created.unwrap();
    name
}

/// Waits for something, with the patience of a test.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("it never came to be: {what}"),
    }
}

/// How the way to the API server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As it should be.
    Open,
    /// Connections are ended and new ones are not accepted.
    Cut,
    /// What is sent arrives nowhere, and nobody says so.
    Silent,
}

/// A way to the API server that can be cut.
pub struct Road {
    way: watch::Sender<Way>,
    /// How many connections have come this way.
    taken: watch::Receiver<usize>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Road {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Road {
    /// An open way to the API server, and a client that goes this way.
    pub async fn open(server: &ApiServer) -> (Self, Client) {
        let kubeconfig = Kubeconfig::read_from(&server.kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await;
        let mut config = config.unwrap();
        let authority = config.cluster_url.authority().unwrap().to_string();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (way, state) = watch::channel(Way::Open);
        let (count, taken) = watch::channel(0);
        let task = tokio::spawn(carry(listener, authority, state, count));
        let road = Self {
            way,
            taken,
            address,
            task,
        };
        config.cluster_url = format!("https://{}", road.address).parse().unwrap();
        (road, client_from_config(config).unwrap())
    }

    /// Waits until somebody has come this way.
    pub async fn taken(&mut self) {
        self.taken.wait_for(|count| *count > 0).await.unwrap();
    }

    pub fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

async fn carry(
    listener: TcpListener,
    to: String,
    way: watch::Receiver<Way>,
    count: watch::Sender<usize>,
) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        count.send_modify(|count| *count += 1);
        connections.spawn(connection(stream, to.clone(), way.clone()));
    }
}

async fn connection(mut near: TcpStream, to: String, mut way: watch::Receiver<Way>) {
    let Ok(mut far) = TcpStream::connect(to).await else {
        return;
    };
    loop {
        let now = *way.borrow_and_update();
        match now {
            Way::Cut => return,
            Way::Silent => {
                if way.changed().await.is_err() {
                    return;
                }
            }
            // What is lost when the way changes ends the connection in any case: it is encrypted.
            Way::Open => tokio::select! {
                ended = tokio::io::copy_bidirectional(&mut near, &mut far) => return drop(ended),
                changed = way.changed() => if changed.is_err() { return },
            },
        }
    }
}
