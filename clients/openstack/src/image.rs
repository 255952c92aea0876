//! Glance: an image by id or by exactly its name.

use http::Method;
use serde::Deserialize;

use crate::client::{Ask, Client};
use crate::compute::one;
use crate::decode::or_default;
use crate::error::{Result, found};
use crate::query::{Query, at};
use crate::service::Service;

/// What servers are made of.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Image {
    /// Its id.
    pub id: String,
    /// Its name; not unique.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// `active` when it can be used.
    #[serde(default, deserialize_with = "or_default")]
    pub status: String,
    /// `public`, `private`, ...
    pub visibility: Option<String>,
    /// In bytes.
    pub size: Option<u64>,
    /// The least disk for it, in GiB.
    #[serde(default, deserialize_with = "or_default")]
    pub min_disk: u64,
    /// The least memory for it, in MiB.
    #[serde(default, deserialize_with = "or_default")]
    pub min_ram: u64,
}

impl Client {
    /// An image by its id.
    pub async fn image(&self, id: &str) -> Result<Image> {
        let ask = Ask::new(Service::Image, Method::GET, "show image", at!("images", id));
        self.ask(ask).await?.read_all()
    }

    /// An image by its id or, if none has it, by exactly its name.
    pub async fn find_image(&self, id_or_name: &str) -> Result<Option<Image>> {
        if is_uuid(id_or_name)
            && let Some(image) = found(self.image(id_or_name).await)?
        {
            return Ok(Some(image));
        }
        let list = |query| {
            Ask::new(Service::Image, Method::GET, "list images", at!("images")).query(query)
        };
        // Quoted: Glance takes `in:a,b` for a list of names.
        let quoted = id_or_name.replace('\\', "\\\\").replace('"', "\\\"");
        let query = Query::new().with("name", format!("in:\"{quoted}\""));
        let images: Vec<Image> = self.list(list, query, "images").await?;
        let named = images.into_iter().filter(|image| image.name == id_or_name);
        one("images", id_or_name, named)
    }
}

/// Whether it can be an id of Glance, Neutron or Cinder.
pub(crate) fn is_uuid(text: &str) -> bool {
    let dashes = [8, 13, 18, 23];
    text.len() == 36
        && text.bytes().enumerate().all(|(index, byte)| {
            if dashes.contains(&index) {
                byte == b'-'
            } else {
                byte.is_ascii_hexdigit()
            }
        })
}
