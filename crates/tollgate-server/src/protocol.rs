//! The protocols by which requests arrive. Metrics, logs and decisions name them.

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
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
    /// A call through the outbound proxy, about which this server's own policy does not decide.
    Outbound,
}

impl Protocol {
    /// Every protocol whose requests the policy decides about, in the order of their numbers.
    pub(crate) const ALL: [Protocol; 6] = [
        Protocol::Http,
        Protocol::Authz,
        Protocol::Rls,
        Protocol::Resp,
        Protocol::Limitador,
        Protocol::Gateway,
    ];
    /// Every protocol that has connections, in the order of their numbers.
    pub(crate) const CONNECTED: [Protocol; 7] = [
        Protocol::Http,
        Protocol::Authz,
        Protocol::Rls,
        Protocol::Resp,
        Protocol::Limitador,
        Protocol::Gateway,
        Protocol::Outbound,
    ];

    /// Its name in metrics and logs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Authz => "authz",
            Protocol::Rls => "rls",
            Protocol::Resp => "resp",
            Protocol::Limitador => "limitador",
            Protocol::Gateway => "gateway",
            Protocol::Outbound => "outbound",
        }
    }

    /// Whether Tollgate itself reads the attributes from requests, so that no caller names them.
    pub(crate) const fn reads_requests(self) -> bool {
        matches!(self, Protocol::Authz | Protocol::Gateway)
    }
}
