//! Lists the hypervisors of a cloud, with the variables `OS_*` that OpenStack's own clients use.

use cobalt_openstack::{Client, Config, Source};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let client = Client::new(Config::new(Source::environment()));
    for hypervisor in client.compute().hypervisors_with_servers().await? {
        println!(
            "{} {:30} {:5} {:9} {} servers",
            hypervisor.id,
            hypervisor.hostname,
            hypervisor.state.as_str(),
            hypervisor.status.as_str(),
            hypervisor.servers.len(),
        );
    }
    Ok(())
}
