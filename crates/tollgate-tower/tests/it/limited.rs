//! A service behind a layer, with a manual clock.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use tollgate::{Engine, ManualClock, Policy};
use tollgate_tower::peer::Peer;
use tollgate_tower::{EngineDecider, RateLimitLayer};
use tower::{Service, ServiceExt};

pub(crate) type Layer = RateLimitLayer<EngineDecider<tollgate::MemoryStore>>;

/// An engine, its clock, and a layer around it.
pub(crate) struct World {
    pub(crate) time: ManualClock,
    pub(crate) engine: Arc<Engine>,
}

impl World {
    /// A layer with these limits.
    pub(crate) fn new(limits: &str) -> Self {
        let time = ManualClock::new();
        let file = format!("limits:\n{limits}\n");
        let policy = Policy::compile("policy.yaml", file.as_bytes()).unwrap();
        let engine = Arc::new(Engine::builder().policy(policy).clock(time.clock()).build());
        Self { time, engine }
    }

    pub(crate) fn layer(&self) -> Layer {
        RateLimitLayer::new(Arc::clone(&self.engine))
    }

    /// The remaining units of the first limit that matches these attributes.
    pub(crate) fn remaining(&self, attributes: &[(&str, &str)]) -> u64 {
        let mut request = tollgate::CheckRequest::new().looking();
        for (name, value) in attributes {
            request.push(name, *value).unwrap();
        }
        let decision = self.engine.try_check(&request, self.time.now()).unwrap();
        decision.limits().next().unwrap().outcome.remaining
    }
}

/// The answer to a caller.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// A request from an address.
pub(crate) fn from(peer: &str, path: &str) -> Request<Full<Bytes>> {
    let mut request = Request::get(path).body(Full::default()).unwrap();
    request.extensions_mut().insert(Peer(peer.parse::<IpAddr>().unwrap()));
    request
}

/// Sends a request to a service, and reads the whole answer.
pub(crate) async fn ask<S, B>(service: &S, request: Request<Full<Bytes>>) -> Got
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible> + Clone,
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let response = service.clone().oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Got {
        status: head.status.as_u16(),
        headers: head.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

/// A service that says hello.
pub(crate) async fn hello(_: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}
