//! Raw HTTP/1.1, as bytes: what is sent is exactly what a test says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::program::Server;

/// A response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// Reads one response.
    pub fn read(stream: &mut BufReader<&TcpStream>) -> Self {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let status =
            line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {line:?}")).parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let mut response = Self { status, headers, body: Vec::new() };
        response.body = if response.header("transfer-encoding") == Some("chunked") {
            chunks(stream)
        } else {
            let length = response.header("content-length").map_or(0, |length| length.parse().unwrap());
            exactly(stream, length)
        };
        response
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The explanation of a problem, after a look at the rest of it.
    pub fn problem(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let json = self.json();
        let members: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(members, ["detail", "status", "title", "type"]);
        assert_eq!(json["status"], status);
        assert!(json["type"].as_str().unwrap().starts_with("urn:tollgate:problem:"));
        json["detail"].as_str().unwrap().to_owned()
    }

    /// The explanation of a problem that is over when there is capacity again, for this reason.
    pub fn lack_of_capacity(&self, reason: &str) -> String {
        assert_eq!((self.status, self.header("content-type")), (503, Some("application/problem+json")));
        let (json, retry) = (self.json(), self.header("retry-after").unwrap().parse::<u64>().unwrap());
        assert!((1..=5).contains(&retry), "{retry}");
        let registered = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
        assert_eq!(
            (json["type"].as_str(), json["reason"].as_str(), json["status"].as_u64()),
            (Some(registered), Some(reason), Some(503))
        );
        json["detail"].as_str().unwrap().to_owned()
    }
}

/// A body in chunks. Trailers are skipped.
fn chunks(stream: &mut BufReader<&TcpStream>) -> Vec<u8> {
    let mut body = Vec::new();
    let mut line = String::new();
    loop {
        line.clear();
        stream.read_line(&mut line).unwrap();
        let size = line.trim_end().split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(size, 16).unwrap_or_else(|_| panic!("no size of a chunk: {line:?}"));
        if size == 0 {
            break;
        }
        body.extend(exactly(stream, size));
        assert_eq!(exactly(stream, 2), b"\r\n");
    }
    while line != "\r\n" {
        line.clear();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "the body ended within its trailers");
    }
    body
}

fn exactly(stream: &mut BufReader<&TcpStream>, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// A request as bytes, with its length.
pub fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

impl Server {
    /// Sends bytes on a connection of their own, and reads one response.
    pub fn exchange(&self, bytes: &[u8]) -> Response {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        Response::read(&mut BufReader::new(&stream))
    }

    pub fn send(&self, method: &str, path: &str, body: &str) -> Response {
        self.exchange(&request(method, path, "Content-Type: application/json\r\n", body.as_bytes()))
    }

    /// A check that must be answered.
    pub fn check(&self, body: &str) -> Value {
        let response = self.send("POST", "/v1/check", body);
        assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
        assert_eq!(response.header("content-type"), Some("application/json"));
        response.json()
    }

    /// The remaining units of the first limit for a key, by a look that charges nothing.
    pub fn remaining(&self, key: &str) -> u64 {
        let answer = self.check(&format!(r#"{{"attributes":{{"api_key":"{key}"}},"cost":0}}"#));
        answer["limits"][0]["remaining"].as_u64().unwrap()
    }
}
