//! Requests of tests to a running server: its metrics, whether it is ready, its counters over RESP and in its store.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::program::Server;
use crate::until;

impl Server {
    /// The page of numbers.
    pub fn metrics(&self) -> String {
        let response = self.exchange(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(response.status, 200);
        assert_eq!(response.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
        String::from_utf8(response.body).unwrap()
    }

    /// The decisions of one protocol, whatever they were.
    pub fn decisions(&self, protocol: &str) -> u64 {
        let (page, protocol) = (self.metrics(), format!("wire=\"{protocol}\""));
        let is_asked =
            |series: &str| series.starts_with("tollgate_decisions_total{") && series.contains(&protocol);
        numbers(&page).into_iter().filter(|(series, _)| is_asked(series)).map(|(_, number)| number).sum()
    }

    /// One number of it.
    pub fn metric(&self, series: &str) -> u64 {
        let page = self.metrics();
        let numbers = numbers(&page);
        *numbers.get(series).unwrap_or_else(|| panic!("no {series} in\n{page}"))
    }
}

impl Server {
    /// Where it listens for redis clients, by its own words.
    pub fn resp(&self) -> SocketAddr {
        let line = self.banner.lines().find_map(|line| line.trim().strip_prefix("RESP    "));
        let (_, address) = line.expect("the banner says where").split_once("://").unwrap();
        address.parse().unwrap()
    }

    /// Sends bytes on a connection of their own, and reads until the server ends it.
    pub fn resp_exchange(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.resp()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Server {
    /// The document of `/readyz`, whose status is 200 whatever the policy.
    pub fn ready(&self) -> Value {
        let response = self.send("GET", "/readyz", "");
        assert_eq!(response.status, 200);
        response.json()
    }

    pub fn reloads(&self) -> (u64, u64) {
        let reloads = &self.ready()["policy"]["reloads"];
        (reloads["good"].as_u64().unwrap(), reloads["bad"].as_u64().unwrap())
    }

    /// The active limit, by a look that charges nothing.
    pub fn limit(&self) -> u64 {
        let answer = self.check(r#"{"attributes":{"api_key":"k"},"cost":0}"#);
        answer["limits"][0]["limit"].as_u64().unwrap()
    }

    /// Waits until `/readyz` counts so many reloads, good and bad. A policy is active a moment before its reload is counted.
    pub fn await_reloads(&self, wanted: (u64, u64)) {
        until("the reload is counted", || (self.reloads() == wanted).then_some(()));
    }

    pub fn await_degraded(&self) -> String {
        until("degraded", || {
            let ready = self.ready();
            (ready["status"] == "degraded")
                .then(|| ready["policy"]["error"]["text"].as_str().unwrap().to_owned())
        })
    }
}

impl Server {
    /// The remaining units of a key, by the store.
    pub fn left(&self, key: &str) -> u64 {
        until("a look is answered by the store", || {
            let answer = self.check(&format!(r#"{{"attributes":{{"api_key":"{key}"}},"cost":0}}"#));
            (answer["limits"][0]["source"] == "exact")
                .then(|| answer["limits"][0]["remaining"].as_u64().unwrap())
        })
    }

    /// Charges a key, if the store was quick enough to be asked. What is left of it then.
    pub fn charged(&self, key: &str) -> Option<u64> {
        let answer = self.check(&asked(key));
        (answer["limits"][0]["source"] == "exact").then(|| answer["limits"][0]["remaining"].as_u64().unwrap())
    }

    /// Waits until decisions are made in the store.
    pub fn joined(&self) {
        self.left("no-client");
    }

    /// Where the answer to one check came from.
    pub fn source(&self, body: &str) -> String {
        self.check(body)["limits"][0]["source"].as_str().unwrap().to_owned()
    }

    pub fn readyz(&self) -> (u16, Value) {
        let response = self.send("GET", "/readyz", "");
        (response.status, response.json())
    }
}

/// The whole numbers of a page, by series.
pub fn numbers(page: &str) -> HashMap<&str, u64> {
    let lines = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    lines.filter_map(|(series, number)| Some((series, number.parse().ok()?))).collect()
}

fn asked(key: &str) -> String {
    format!(r#"{{"attributes":{{"api_key":"{key}"}}}}"#)
}
