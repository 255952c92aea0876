//! Recorded exchanges with real services, played back by the fake.

use std::path::Path;

use cobalt_openstack::Client;
use serde_json::Value;

use crate::fake::{Act, Fake, Seen};

/// A recorded exchange.
pub struct Sample {
    pub request: Value,
    pub response: Value,
}

impl Sample {
    pub fn load(number: u32) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
        let prefix = format!("{number:03}-");
        let file = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap())
            .find(|entry| entry.file_name().to_str().unwrap().starts_with(&prefix))
            .unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let mut value: Value = serde_json::from_str(&text).unwrap();
        Self {
            request: value["request"].take(),
            response: value["response"].take(),
        }
    }

    pub fn act(&self) -> Act {
        let status = self.response["status"].as_u64().unwrap();
        let id = self.response["headers"]["X-Openstack-Request-Id"].as_str();
        let headers = vec![("X-Openstack-Request-Id", id.unwrap().to_owned())];
        let body = match &self.response["body"] {
            Value::String(text) => text.clone(),
            body => body.to_string(),
        };
        Act::Answer(status.try_into().unwrap(), headers, body)
    }

    /// Path below the endpoint, and the query's pairs.
    fn target(&self) -> (String, Vec<String>) {
        let url = self.request["url"].as_str().unwrap();
        let path = url.splitn(4, '/').nth(3).unwrap_or_default();
        split(&format!("/{}", path.trim_start_matches("v2.1/")))
    }
}

fn split(path: &str) -> (String, Vec<String>) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let plain = |pair: &str| pair.replace("%3A", ":").replace("%2C", ",");
    (path.to_owned(), pairs.map(plain).collect())
}

/// A cloud that gives the answer of one recorded exchange to everything.
pub struct Replay {
    fake: Fake,
    sample: Sample,
    pub client: Client,
}

impl Replay {
    pub async fn of(number: u32) -> Self {
        let sample = Sample::load(number);
        let act = sample.act();
        let fake = Fake::start(move |_| act.clone()).await;
        let client = fake.client();
        Self {
            fake,
            sample,
            client,
        }
    }

    /// The one request was the recorded one, up to the parts of a query that are named.
    pub fn asked_the_same_but_for(&self, more: &[&str]) {
        let seen = self.fake.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        let Seen {
            method, path, body, ..
        } = &seen[0];
        let (path, pairs) = split(path);
        let path = path
            .trim_start_matches("/compute/v2.1")
            .trim_start_matches("/placement");
        let (recorded, recorded_pairs) = self.sample.target();
        assert_eq!(
            (method.as_str(), path),
            (self.sample.request["method"].as_str().unwrap(), &*recorded)
        );
        for pair in &recorded_pairs {
            let differs = more
                .iter()
                .any(|name| pair.starts_with(&format!("{name}=")));
            assert!(
                differs || pairs.contains(pair),
                "{pair} is not in {pairs:?}"
            );
        }
        for pair in &pairs {
            let known = recorded_pairs.contains(pair)
                || more
                    .iter()
                    .any(|name| pair.starts_with(&format!("{name}=")));
            assert!(known, "{pair} is not in {recorded_pairs:?}");
        }
        assert_eq!(*body, self.sample.request["body"]);
    }

    pub fn asked_the_same(&self) {
        self.asked_the_same_but_for(&[]);
    }

    /// The id that the service gave to the request.
    pub fn request_id(&self) -> Option<String> {
        let id = self.sample.response["headers"]["X-Openstack-Request-Id"].as_str();
        id.map(str::to_owned)
    }
}
