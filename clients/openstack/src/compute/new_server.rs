//! A server to be made: on a host, from an image or a volume.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// A server to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewServer {
    /// Its name.
    pub name: String,
    /// The id of its flavor.
    pub flavor: String,
    /// What it boots from.
    pub root: RootDisk,
    /// What it is connected to.
    pub networks: NewServerNetworks,
    /// Exactly this nova-compute; the scheduler checks it. Needs an administrator.
    pub host: Option<String>,
    /// `zone`, or `zone:host`, which goes around the scheduler's filters.
    pub availability_zone: Option<String>,
    /// What is written to it.
    pub metadata: BTreeMap<String, String>,
}

/// What a server boots from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootDisk {
    /// A copy of an image on the host's own disk.
    Image(String),
    /// A new volume with an image, which goes with the server.
    Volume {
        /// The id of the image.
        image: String,
        /// Its size.
        gib: u64,
        /// The name or id of its type; else Cinder's default.
        volume_type: Option<String>,
    },
    /// An empty disk on the host.
    Blank {
        /// Its size.
        gib: u64,
    },
}

/// What a server is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewServerNetworks {
    /// Nothing.
    None,
    /// These networks, by id.
    Networks(Vec<String>),
}

impl NewServer {
    pub(super) fn to_json(&self) -> Value {
        let mut server = Map::new();
        let mut set = |key: &str, value: Value| server.insert(key.into(), value);
        set("name", json!(self.name));
        set("flavorRef", json!(self.flavor));
        let disk = |source: Value, gib: &u64| {
            let mut disk = Map::new();
            disk.insert("boot_index".into(), json!(0));
            disk.insert("volume_size".into(), json!(gib));
            disk.insert("delete_on_termination".into(), json!(true));
            if let Value::Object(source) = source {
                disk.extend(source);
            }
            json!([disk])
        };
        match &self.root {
            RootDisk::Image(image) => {
                set("imageRef", json!(image));
            }
            RootDisk::Volume {
                image,
                gib,
                volume_type,
            } => {
                let mut source = json!({
                    "source_type": "image", "uuid": image, "destination_type": "volume",
                });
                if let (Some(kind), Some(source)) = (volume_type, source.as_object_mut()) {
                    source.insert("volume_type".into(), json!(kind));
                }
                set("block_device_mapping_v2", disk(source, gib));
            }
            RootDisk::Blank { gib } => {
                set("imageRef", json!(""));
                let source = json!({ "source_type": "blank", "destination_type": "local" });
                set("block_device_mapping_v2", disk(source, gib));
            }
        }
        let networks = match &self.networks {
            NewServerNetworks::None => json!("none"),
            NewServerNetworks::Networks(ids) => {
                ids.iter().map(|id| json!({ "uuid": id })).collect()
            }
        };
        set("networks", networks);
        if let Some(host) = &self.host {
            set("host", json!(host));
        }
        if let Some(zone) = &self.availability_zone {
            set("availability_zone", json!(zone));
        }
        if !self.metadata.is_empty() {
            set("metadata", json!(self.metadata));
        }
        json!({ "server": server })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_server_says_what_it_needs_and_no_more() {
        let mut new = NewServer {
            name: "a".into(),
            flavor: "1".into(),
            root: RootDisk::Blank { gib: 1 },
            networks: NewServerNetworks::None,
            host: Some("hv1".into()),
            availability_zone: None,
            metadata: BTreeMap::new(),
        };
        assert_eq!(
            new.to_json(),
            json!({ "server": {
                "name": "a", "flavorRef": "1", "imageRef": "", "networks": "none", "host": "hv1",
                "block_device_mapping_v2": [{
                    "boot_index": 0, "source_type": "blank", "destination_type": "local",
                    "volume_size": 1, "delete_on_termination": true,
                }],
            }})
        );
        new.root = RootDisk::Volume {
            image: "i".into(),
            gib: 64,
            volume_type: Some("premium".into()),
        };
        new.networks = NewServerNetworks::Networks(vec!["n".into()]);
        new.host = None;
        new.availability_zone = Some("az:hv1".into());
        assert_eq!(
            new.to_json(),
            json!({ "server": {
                "name": "a", "flavorRef": "1", "networks": [{ "uuid": "n" }],
                "availability_zone": "az:hv1",
                "block_device_mapping_v2": [{
                    "boot_index": 0, "source_type": "image", "uuid": "i",
                    "destination_type": "volume", "volume_type": "premium",
                    "volume_size": 64, "delete_on_termination": true,
                }],
            }})
        );
    }
}
