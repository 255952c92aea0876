//! The services of a cloud, as far as they are used here.

use std::fmt;

/// A service of OpenStack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// Keystone.
    Identity,
    /// Nova.
    Compute,
    /// Placement.
    Placement,
    /// Glance.
    Image,
    /// Neutron.
    Network,
    /// Cinder.
    Volume,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Identity,
        Self::Compute,
        Self::Placement,
        Self::Image,
        Self::Network,
        Self::Volume,
    ];

    /// Its name in metrics and messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Compute => "compute",
            Self::Placement => "placement",
            Self::Image => "image",
            Self::Network => "network",
            Self::Volume => "volume",
        }
    }

    /// Its types in a catalog, the preferred one first.
    pub(crate) fn types(self) -> &'static [&'static str] {
        match self {
            Self::Identity => &["identity"],
            Self::Compute => &["compute"],
            Self::Placement => &["placement"],
            Self::Image => &["image"],
            Self::Network => &["network"],
            Self::Volume => &["block-storage", "volumev3", "block-store"],
        }
    }

    /// What is put behind an endpoint that names no version.
    pub(crate) fn version_path(self) -> &'static str {
        match self {
            Self::Identity | Self::Volume => "/v3",
            Self::Compute => "/v2.1",
            Self::Placement => "",
            Self::Image => "/v2",
            Self::Network => "/v2.0",
        }
    }

    /// The variable that overrides its endpoint.
    pub(crate) fn override_variable(self) -> &'static str {
        match self {
            Self::Identity => "OS_IDENTITY_ENDPOINT_OVERRIDE",
            Self::Compute => "OS_COMPUTE_ENDPOINT_OVERRIDE",
            Self::Placement => "OS_PLACEMENT_ENDPOINT_OVERRIDE",
            Self::Image => "OS_IMAGE_ENDPOINT_OVERRIDE",
            Self::Network => "OS_NETWORK_ENDPOINT_OVERRIDE",
            Self::Volume => "OS_VOLUME_ENDPOINT_OVERRIDE",
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
