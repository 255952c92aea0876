//! Metrics as text, in the format that every Prometheus reads (0.0.4).

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

/// The content type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of a registry. The encoder writes OpenMetrics, where a counter's family lacks the
/// suffix of its samples; in the older format both have it.
#[must_use]
pub fn text(registry: &Registry) -> String {
    let mut open = String::new();
    // Writing to a string cannot fail; if it did, a part would be better than nothing.
    encode_registry(&mut open, registry).ok();
    let mut text = String::with_capacity(open.len() + 512);
    let mut help = None;
    for line in open.lines() {
        if line.starts_with("# HELP ") {
            help = Some(line);
            continue;
        }
        let counter = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.strip_suffix(" counter"));
        if let Some(line) = help.take() {
            match counter {
                Some(name) => text.push_str(&line.replacen(name, &format!("{name}_total"), 1)),
                None => text.push_str(line),
            }
            text.push('\n');
        }
        match counter {
            Some(name) => {
                text.push_str("# TYPE ");
                text.push_str(name);
                text.push_str("_total counter");
            }
            None => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    #[test]
    fn a_counter_has_one_name_throughout() {
        let mut registry = Registry::default();
        let writes = Counter::<u64>::default();
        writes.inc();
        registry.register("writes", "Writes", writes);
        let open = Gauge::<i64>::default();
        registry.register("open", "Open ones", open);
        assert_eq!(
            text(&registry),
            "# HELP writes_total Writes.\n# TYPE writes_total counter\nwrites_total 1\n\
             # HELP open Open ones.\n# TYPE open gauge\nopen 0\n"
        );
    }
}
