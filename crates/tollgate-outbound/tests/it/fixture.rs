//! A client in virtual time, and responses of a server.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::task::JoinHandle;
use tollgate::{Engine, ManualClock, Timestamp};
use tollgate_outbound::{Call, Guard, Outbound, Refusal, ResponseView, Settings};

pub(crate) const HOST: &str = "api.example.com";

pub(crate) struct Client {
    pub(crate) time: ManualClock,
    pub(crate) outbound: Outbound,
}

pub(crate) fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.seed = Some(7);
    settings
}

impl Client {
    pub(crate) fn new(policy: &str, settings: Settings) -> Self {
        let time = ManualClock::new();
        let engine = Engine::builder().policy(policy.parse().unwrap()).clock(time.clock()).build();
        Self { outbound: Outbound::new(engine, settings), time }
    }

    /// A call that is acquired in a task of its own.
    pub(crate) fn start(&self, call: Call) -> JoinHandle<Result<Guard, Refusal>> {
        let outbound = self.outbound.clone();
        tokio::spawn(async move { outbound.acquire(&call).await })
    }

    pub(crate) async fn advance(&self, by: Duration) {
        self.time.advance(by);
        run_tasks().await;
    }

    /// Settles a call. Returns why it may not leave again, if it was refused so.
    pub(crate) async fn answer(
        &self,
        guard: Guard,
        status: u16,
        headers: &[(&str, &str)],
    ) -> Option<Refusal> {
        let headers = header_map(headers);
        let refusal = guard.settle(&self.response(status, &headers), None).await.err();
        run_tasks().await;
        refusal
    }

    pub(crate) fn response<'a>(&self, status: u16, headers: &'a HeaderMap) -> ResponseView<'a> {
        let status = StatusCode::from_u16(status).unwrap();
        ResponseView { status, headers, body: None, received: self.time.now() }
    }
}

pub(crate) fn call() -> Call {
    Call::to(HOST)
}

pub(crate) fn header_map(headers: &[(&str, &str)]) -> HeaderMap {
    let pair = |(name, value): &(&str, &str)| {
        (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
    };
    headers.iter().map(pair).collect()
}

/// Lets every task run until all of them wait.
pub(crate) async fn run_tasks() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// The guard of a call that has left.
pub(crate) async fn left(call: JoinHandle<Result<Guard, Refusal>>) -> Guard {
    assert!(call.is_finished(), "the call still waits");
    call.await.unwrap().unwrap()
}

/// The instants at which calls left, in order.
#[derive(Clone, Default)]
pub(crate) struct Departures(Arc<Mutex<VecDeque<(usize, Timestamp)>>>);

impl Departures {
    pub(crate) fn note(&self, number: usize, at: Timestamp) {
        self.0.lock().unwrap().push_back((number, at));
    }

    pub(crate) fn numbers(&self) -> Vec<usize> {
        self.0.lock().unwrap().iter().map(|(number, _)| *number).collect()
    }

    pub(crate) fn times(&self) -> Vec<Timestamp> {
        self.0.lock().unwrap().iter().map(|(_, at)| *at).collect()
    }
}
