//! Where the tests of new hosts run: the project, the image, the flavor, the network and the type of
//! volume, found by exact name or id. What is missing is said in words, and looked for again.

use std::sync::Arc;
use std::time::Duration;

use cobalt_openstack::compute::{NewServer, NewServerNetworks, RootDisk};
use cobalt_openstack::{Client, Error, Reference, Scope, Service};
use cobalt_runtime::{Health, chain, jitter};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often everything is looked up again.
const AGAIN: Duration = Duration::from_secs(600);
/// How often if something is missing.
const SOON: Duration = Duration::from_secs(30);

/// What the operator was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestConfig {
    /// The project, by name or id.
    pub project: String,
    /// The domain of the project. Empty: the project is an id.
    pub domain: String,
    /// The image, by name or id.
    pub image: String,
    /// The flavor, by name or id.
    pub flavor: String,
    /// The network, by name or id. Empty: the only one of the project.
    pub network: String,
    /// The type of the volume to boot from. Empty: it boots from the image.
    pub volume_type: String,
    /// The size of the volume.
    pub volume_gib: u64,
}

/// All of it, found.
#[derive(Debug)]
pub struct Testbed {
    /// A client of the project.
    pub client: Client,
    /// The project.
    pub project_id: String,
    flavor: String,
    root: RootDisk,
    network: Option<String>,
}

impl Testbed {
    /// A server that tests a host.
    #[must_use]
    pub fn server(&self, name: &str, host: &str, zone: Option<&str>) -> NewServer {
        NewServer {
            name: name.to_owned(),
            flavor: self.flavor.clone(),
            root: self.root.clone(),
            networks: self.network.as_ref().map_or(NewServerNetworks::None, |id| {
                NewServerNetworks::Networks(vec![id.clone()])
            }),
            // The host alone: the scheduler checks that it may be used.
            host: Some(host.to_owned()),
            availability_zone: zone.map(ToOwned::to_owned),
            metadata: [("purpose".to_owned(), "test of a new host".to_owned())].into(),
        }
    }
}

/// What is known of it.
pub type Found = Result<Arc<Testbed>, String>;

/// Looks everything up, again and again.
pub async fn run(
    client: Client,
    config: TestConfig,
    found: watch::Sender<Found>,
    health: Health,
    cancel: CancellationToken,
) {
    loop {
        let result = tokio::select! {
            result = find(&client, &config) => result,
            () = cancel.cancelled() => return,
        };
        if let Err(why) = &result {
            tracing::warn!(why, "new hosts cannot be tested");
        }
        health.set_missing("tests of new hosts", result.as_ref().err().cloned());
        let wait = if result.is_ok() { AGAIN } else { SOON };
        let new = result.as_ref().err().cloned();
        let old = found.borrow().as_ref().err().cloned();
        // What was found stays while Keystone or Nova are away.
        if result.is_ok() || old.is_some() && old != new {
            drop(found.send_replace(result.map(Arc::new)));
        }
        tokio::select! {
            () = tokio::time::sleep(jitter(wait)) => {}
            () = cancel.cancelled() => return,
        }
    }
}

async fn find(client: &Client, config: &TestConfig) -> Result<Testbed, String> {
    let project = if config.domain.is_empty() {
        Reference::Id(config.project.clone())
    } else {
        Reference::named_in(&config.project, Reference::named(&config.domain))
    };
    let said = |what: &str, error: &Error| format!("{what}: {}", chain(error));
    let scoped = client.scoped(Scope::Project(project));
    let account = scoped.check(&[Service::Compute]).await.map_err(|error| {
        let what = format!("the test project \"{}\" cannot be used", config.project);
        said(&what, &error)
    })?;
    let project_id = account
        .project_id
        .ok_or("Keystone does not say which project it is")?;
    let missing = |what: &str, name: &str| {
        format!("there is no {what} \"{name}\" in the test project: make it, or name another one")
    };
    let flavor = scoped
        .compute()
        .find_flavor(&config.flavor)
        .await
        .map_err(|error| said("the test flavor", &error))?
        .ok_or_else(|| missing("flavor", &config.flavor))?;
    let image = scoped
        .find_image(&config.image)
        .await
        .map_err(|error| said("the test image", &error))?
        .ok_or_else(|| missing("image", &config.image))?;
    let root = if config.volume_type.is_empty() {
        RootDisk::Image(image.id)
    } else {
        let found = scoped
            .find_volume_type(&config.volume_type)
            .await
            .map_err(|error| said("the test volume type", &error))?
            .ok_or_else(|| missing("volume type", &config.volume_type))?;
        RootDisk::Volume {
            image: image.id,
            gib: config.volume_gib,
            volume_type: Some(found.name),
        }
    };
    let network = network(&scoped, config, &project_id).await?;
    Ok(Testbed {
        client: scoped,
        project_id,
        flavor: flavor.id,
        root,
        network,
    })
}

async fn network(
    client: &Client,
    config: &TestConfig,
    project: &str,
) -> Result<Option<String>, String> {
    let said = |error: &Error| format!("the test network: {}", chain(error));
    if !config.network.is_empty() {
        let found = client
            .find_network(&config.network)
            .await
            .map_err(|error| said(&error))?;
        let found = found.ok_or_else(|| {
            format!(
                "there is no network \"{}\" in the test project: make it, or name another one",
                config.network
            )
        })?;
        return Ok(Some(found.id));
    }
    let all = client
        .networks(Some(false))
        .await
        .map_err(|error| said(&error))?;
    let mut own: Vec<String> = all
        .into_iter()
        .filter(|network| network.project_id.as_deref() == Some(project) && !network.external)
        .map(|network| network.id)
        .collect();
    own.sort();
    // Without any, the server has none: it boots all the same.
    Ok(own.into_iter().next())
}
