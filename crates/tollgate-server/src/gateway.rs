//! The gateway: a reverse proxy in front of services that cannot be changed. The way of a request: `connection` (HTTP/1 through `strict`, which lets
//! only `framing` that nobody can read differently pass, or HTTP/2 through `frames`, which ends floods) → `arrival` (its one spelling, and who sent it) →
//! the decision → `proxy` (its route in the `table`, the upstream that `spread` chooses) → `fields` (what the next hop is told) → `upstream` (a connection of `link`) → `body`.
//! Routes come from the config by way of `plan`; `health` and `checks` say which upstreams are asked; `tunnel` is for what is no longer HTTP.

use std::sync::Arc;

use hyper::Request;
use hyper::Response;
use hyper::body::Incoming;

mod plan;
mod connection;
mod strict;
mod framing;
mod frames;
mod arrival;
mod proxy;
mod table;
mod spread;
mod fields;
mod upstream;
mod link;
mod body;
mod tunnel;
mod health;
mod checks;
mod numbers;
mod refusal;

pub(crate) use connection::connection;
pub use plan::Target;
pub(crate) use plan::{RouteDocument, RoutePlan, compile};
pub(crate) use refusal::Turned;

use crate::service::{Service, Wire};
use crate::telemetry::Open;
use arrival::Peer;
use body::Body;
use proxy::Proxy;
use table::Table;

/// What a connection of HTTP/1 may keep of a head, or of a body between two reads. A head may be as large on the wire; one that is
/// larger than a request may have is answered by whoever looks at it.
const HEAD_BUFFER_BYTES: usize = 64 << 10;

/// The gateway.
pub(crate) struct Gateway {
    service: Arc<Service>,
    proxy: Proxy,
}

/// Marks an answer of the gateway's own.
#[derive(Clone, Copy)]
struct Own;

impl Gateway {
    /// A gateway with these routes, which limits as the service does.
    ///
    /// # Errors
    /// When a file that a route names is not what it should be.
    pub(crate) fn new(plans: &[RoutePlan], service: Arc<Service>, clock: tollgate::Clock) -> Result<Self, String> {
        let proxy = Proxy::new(Table::new(plans)?, service.reader.clone(), clock);
        Ok(Self { service, proxy })
    }

    fn opened(&self) -> Open {
        self.service.meter.opened(Wire::Gateway)
    }

    /// Answers one request of a peer.
    async fn answer(&self, mut request: Request<Incoming>, peer: Peer) -> Response<Body> {
        match arrival::arrive(&mut request, peer, &self.proxy.reader, &self.proxy.table.sticky) {
            Ok(arrival) => {
                request.extensions_mut().insert(arrival);
                self.proxy.forward(request).await
            }
            Err(problem) => {
                let mut response = proxy::refused(&problem);
                response.extensions_mut().insert(Own);
                response
            }
        }
    }
}
