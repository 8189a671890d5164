//! The protocols by which requests arrive. Metrics, logs and decisions name them.

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wire {
    /// JSON over HTTP.
    Http,
    /// `/v1/authz`: a proxy asks about the request that it holds.
    Authz,
    /// Envoy's rate-limit service, over gRPC or as JSON.
    Rls,
    /// RESP.
    Resp,
    /// Limitador's HTTP interface.
    Limitador,
    /// A request that passes through the gateway.
    Gateway,
}

impl Wire {
    /// Every protocol, in the order of their numbers.
    pub(crate) const ALL: [Wire; 6] =
        [Wire::Http, Wire::Authz, Wire::Rls, Wire::Resp, Wire::Limitador, Wire::Gateway];

    /// Its name in metrics and logs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Wire::Http => "http",
            Wire::Authz => "authz",
            Wire::Rls => "rls",
            Wire::Resp => "resp",
            Wire::Limitador => "limitador",
            Wire::Gateway => "gateway",
        }
    }

    /// Whether Tollgate itself reads the attributes from requests, so that no caller names them.
    pub(crate) const fn reads_requests(self) -> bool {
        matches!(self, Wire::Authz | Wire::Gateway)
    }
}
