//! From what hostnamed, the os-release file and the kernel say to the fields of the status. Pure.

use std::collections::BTreeMap;

use cobalt_api::hypervisor::OperatingSystem;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;

/// What hostnamed says. What it does not know it leaves out or calls null.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Description {
    kernel_name: Option<String>,
    kernel_release: Option<String>,
    kernel_version: Option<String>,
    operating_system_pretty_name: Option<String>,
    hardware_vendor: Option<String>,
    hardware_model: Option<String>,
    hardware_serial: Option<String>,
    firmware_version: Option<String>,
    firmware_vendor: Option<String>,
    /// In microseconds since 1970.
    firmware_date: Option<u64>,
    /// The lines of the os-release file, since systemd 256.
    operating_system_release_data: Option<Vec<String>>,
}

/// Reads the answer of `Describe`.
///
/// # Errors
///
/// When it is not an object of JSON with fields of the documented types.
pub fn description(json: &str) -> serde_json::Result<Description> {
    serde_json::from_str(json)
}

/// The same from the properties of an older hostnamed.
#[must_use]
pub fn from_properties(
    text: impl Fn(&str) -> Option<String>,
    firmware_date: Option<u64>,
) -> Description {
    Description {
        kernel_name: text("KernelName"),
        kernel_release: text("KernelRelease"),
        kernel_version: text("KernelVersion"),
        operating_system_pretty_name: text("OperatingSystemPrettyName"),
        hardware_vendor: text("HardwareVendor"),
        hardware_model: text("HardwareModel"),
        hardware_serial: None,
        firmware_version: text("FirmwareVersion"),
        firmware_vendor: text("FirmwareVendor"),
        firmware_date,
        operating_system_release_data: None,
    }
}

/// What the kernel says of itself. A container sees the kernel of its host.
#[derive(Debug, Clone, Default)]
pub struct Kernel {
    /// `Linux`.
    pub name: String,
    /// `6.12.5-cloud-amd64`.
    pub release: String,
    /// `#1 SMP ...`.
    pub version: String,
    /// What it was started with.
    pub command_line: Option<String>,
}

/// The assignments of an os-release file. Comments, empty lines and lines that are none are passed
/// over; quotes and backslashes are taken off as a shell would (W78).
#[must_use]
pub fn os_release<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<String, String> {
    lines
        .filter_map(|line| {
            let line = line.trim();
            let (key, value) = line.split_once('=')?;
            let key = key.trim();
            let named = !key.is_empty() && !key.starts_with('#');
            named.then(|| (key.to_owned(), unquote(value.trim())))
        })
        .collect()
}

fn unquote(value: &str) -> String {
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
    let inner = match quote {
        Some(quote) => {
            let begun = value.get(1..).unwrap_or_default();
            begun.strip_suffix(quote).unwrap_or(begun)
        }
        None => value,
    };
    if quote == Some('\'') {
        return inner.to_owned();
    }
    let mut plain = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.extend(characters.next()),
            other => plain.push(other),
        }
    }
    plain
}

/// The operating system as the status shows it. While hostnamed cannot be asked, what only it knows
/// is taken over from `before`.
#[must_use]
pub fn operating_system(
    described: Option<&Description>,
    file: Option<&str>,
    kernel: &Kernel,
    before: Option<&OperatingSystem>,
) -> OperatingSystem {
    let mut release = BTreeMap::new();
    let told = described.and_then(|known| known.operating_system_release_data.as_ref());
    if let Some(lines) = told {
        release = os_release(lines.iter().map(String::as_str));
    }
    // The file is what the person who runs the agent has pointed at, so it has the last word.
    if let Some(file) = file {
        release.extend(os_release(file.lines()));
    }
    let has_release = !release.is_empty();
    let mut take = |names: &[&str]| {
        let found = names.iter().find_map(|name| release.remove(*name));
        found.filter(|value| !value.is_empty())
    };
    let own = |value: Option<String>| value.filter(|value| !value.is_empty());
    let hostnamed = described.cloned().unwrap_or_default();
    let mut system = OperatingSystem {
        version: take(&[
            "GARDENLINUX_VERSION",
            "IMAGE_VERSION",
            "VERSION_ID",
            "VERSION",
        ]),
        variant_id: take(&["VARIANT_ID"]),
        pretty_version: take(&["PRETTY_NAME"])
            .or_else(|| own(hostnamed.operating_system_pretty_name)),
        kernel_name: own(Some(kernel.name.clone())).or_else(|| own(hostnamed.kernel_name)),
        kernel_release: own(Some(kernel.release.clone())).or_else(|| own(hostnamed.kernel_release)),
        kernel_version: own(Some(kernel.version.clone())).or_else(|| own(hostnamed.kernel_version)),
        kernel_command_line: kernel.command_line.as_ref().map(|line| {
            line.trim_matches(|c: char| c.is_whitespace() || c == '\0')
                .to_owned()
        }),
        hardware_vendor: own(hostnamed.hardware_vendor),
        hardware_model: own(hostnamed.hardware_model),
        hardware_serial: own(hostnamed.hardware_serial),
        firmware_version: own(hostnamed.firmware_version),
        firmware_vendor: own(hostnamed.firmware_vendor),
        firmware_date: hostnamed.firmware_date.and_then(date),
        garden_linux_commit_id: take(&["GARDENLINUX_COMMIT_ID_LONG", "GARDENLINUX_COMMIT_ID"]),
        garden_linux_features: take(&["GARDENLINUX_FEATURES"])
            .map(|list| features(&list))
            .unwrap_or_default(),
    };
    if let (None, Some(before)) = (described, before) {
        let before = before.clone();
        system.hardware_vendor = before.hardware_vendor;
        system.hardware_model = before.hardware_model;
        system.hardware_serial = before.hardware_serial;
        system.firmware_version = before.firmware_version;
        system.firmware_vendor = before.firmware_vendor;
        system.firmware_date = before.firmware_date;
        if !has_release {
            system.version = before.version;
            system.variant_id = before.variant_id;
            system.pretty_version = before.pretty_version;
            system.garden_linux_commit_id = before.garden_linux_commit_id;
            system.garden_linux_features = before.garden_linux_features;
        }
    }
    system
}

fn features(list: &str) -> Vec<String> {
    list.split(',')
        .map(str::trim)
        .filter(|feature| !feature.is_empty())
        .map(str::to_owned)
        .collect()
}

fn date(microseconds: u64) -> Option<Time> {
    // Some firmware has no date; hostnamed says so with one of the two ends of the numbers.
    let microseconds = i64::try_from(microseconds).ok().filter(|at| *at > 0)?;
    // Whole seconds, as Kubernetes keeps them.
    Timestamp::from_second(microseconds / 1_000_000)
        .ok()
        .map(Time)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GARDEN: &str = r#"
ID=gardenlinux
NAME="Garden Linux"
PRETTY_NAME="Garden Linux 1877.8"
VERSION_ID=1877.8
VARIANT_ID=metal-sci_usi-amd64
GARDENLINUX_FEATURES=_rescue,log,,sap
GARDENLINUX_VERSION=1877.8
GARDENLINUX_COMMIT_ID=abcdef12
GARDENLINUX_COMMIT_ID_LONG=abcdef1234567890
"#;

    fn kernel() -> Kernel {
        Kernel {
            name: "Linux".into(),
            release: "6.12".into(),
            version: "#1 SMP".into(),
            command_line: Some("root=/dev/sda1 quiet\n".into()),
        }
    }

    #[test]
    fn w78_quotes_go_and_lines_without_an_assignment_are_passed_over() {
        let lines = [
            "PRETTY_NAME=\"Garden Linux 1877.8\"",
            "NAME='It is $5'",
            "plain=word",
            "odd=\"a \\\"b\\\" \\\\ c\"",
            "unended=\"x",
            "a line that is none",
            "# COMMENT=1",
            "",
            "=nothing",
            "empty=",
            "a=b=c",
        ];
        let got = os_release(lines.into_iter());
        let wanted = [
            ("NAME", "It is $5"),
            ("PRETTY_NAME", "Garden Linux 1877.8"),
            ("a", "b=c"),
            ("empty", ""),
            ("odd", "a \"b\" \\ c"),
            ("plain", "word"),
            ("unended", "x"),
        ];
        let wanted = wanted.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(got, BTreeMap::from(wanted));
    }

    #[test]
    fn garden_linux_is_told_by_its_own_fields() {
        let system = operating_system(None, Some(GARDEN), &kernel(), None);
        assert_eq!(system.version.as_deref(), Some("1877.8"));
        assert_eq!(system.variant_id.as_deref(), Some("metal-sci_usi-amd64"));
        assert_eq!(
            system.pretty_version.as_deref(),
            Some("Garden Linux 1877.8")
        );
        assert_eq!(
            system.garden_linux_commit_id.as_deref(),
            Some("abcdef1234567890")
        );
        assert_eq!(system.garden_linux_features, ["_rescue", "log", "sap"]);
        assert_eq!(
            system.kernel_command_line.as_deref(),
            Some("root=/dev/sda1 quiet")
        );
    }

    #[test]
    fn both_generations_of_hostnamed_are_understood() {
        // 252 has nulls and no release data; 257 has the lines of the file.
        let old = r#"{"Hostname":"hv1","KernelName":"Linux","KernelRelease":"6.1",
            "OperatingSystemPrettyName":"Debian GNU/Linux 12 (bookworm)","HardwareVendor":null,
            "HardwareModel":"X","FirmwareDate":1577836800000000,"Something":{"new":[1]}}"#;
        let old = operating_system(Some(&description(old).unwrap()), None, &kernel(), None);
        assert_eq!(old.version, None);
        assert_eq!(
            old.pretty_version.as_deref(),
            Some("Debian GNU/Linux 12 (bookworm)")
        );
        assert_eq!(old.hardware_vendor, None);
        assert_eq!(old.hardware_model.as_deref(), Some("X"));
        let date = old.firmware_date.unwrap().0;
        assert_eq!(date, "2020-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
        let new = r#"{"OperatingSystemPrettyName":"Debian GNU/Linux 13 (trixie)",
            "OperatingSystemReleaseData":["PRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"","NAME",
            "VERSION_ID=\"13\""],"FirmwareDate":null}"#;
        let new = operating_system(Some(&description(new).unwrap()), None, &kernel(), None);
        assert_eq!(new.version.as_deref(), Some("13"));
        assert_eq!(
            new.pretty_version.as_deref(),
            Some("Debian GNU/Linux 13 (trixie)")
        );
        assert!(description("7").is_err() && description("").is_err());
    }

    #[test]
    fn w54_what_is_new_replaces_what_was_known() {
        let before = operating_system(None, Some(GARDEN), &kernel(), None);
        let after = Kernel {
            release: "6.18".into(),
            command_line: Some("root=/dev/sdb1".into()),
            ..kernel()
        };
        let file = GARDEN.replace("1877.8", "1900.0");
        let known = Description::default();
        let new = operating_system(Some(&known), Some(&file), &after, Some(&before));
        assert_eq!(new.version.as_deref(), Some("1900.0"));
        assert_eq!(new.kernel_release.as_deref(), Some("6.18"));
        assert_eq!(new.kernel_command_line.as_deref(), Some("root=/dev/sdb1"));
    }

    #[test]
    fn without_hostnamed_what_only_it_knows_stays_and_the_kernel_is_new() {
        let before = OperatingSystem {
            version: Some("1".into()),
            hardware_model: Some("X".into()),
            kernel_release: Some("old".into()),
            ..OperatingSystem::default()
        };
        let system = operating_system(None, None, &kernel(), Some(&before));
        assert_eq!(system.version.as_deref(), Some("1"));
        assert_eq!(system.hardware_model.as_deref(), Some("X"));
        assert_eq!(system.kernel_release.as_deref(), Some("6.12"));
        let system = operating_system(None, Some(GARDEN), &kernel(), Some(&before));
        assert_eq!(system.version.as_deref(), Some("1877.8"));
        assert_eq!(system.hardware_model.as_deref(), Some("X"));
    }
}
