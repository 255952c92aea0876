//! Connected byte streams: unix, tcp, ssl.

use cobalt_wire::{Input, Output, within};

use crate::error::Error;
use crate::options::Options;
use crate::remote::Remote;

/// Connects, within the time that the options give.
pub async fn connect(remote: &Remote, options: &Options) -> Result<(Input, Output), Error> {
    let address = remote.to_string();
    let connecting = async {
        let connected = match remote {
            Remote::Unix(path) => cobalt_wire::unix(path).await?,
            Remote::Tcp(host, port) => cobalt_wire::tcp(&address, host, *port).await?,
            Remote::Ssl(host, port) => {
                let tls = options.tls.as_ref().ok_or_else(|| {
                    Error::BadArgument(format!(
                        "{remote} needs Options::tls: a client certificate, its key and the authority"
                    ))
                })?;
                tls.connect(&address, host, *port).await?
            }
        };
        Ok(connected)
    };
    within(&address, options.connect_timeout, connecting).await
}
