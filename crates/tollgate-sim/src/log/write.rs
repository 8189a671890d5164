//! Writes logs with known truth: the same requests in every format, as the servers would have written them. For tests of
//! what reads logs.

use std::fmt::Write as _;
use std::net::IpAddr;

use tollgate::{Ticks, Timestamp};

use super::format::Format;
use super::record::Precision;

/// The ground truth: one request, exact to the tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Truth {
    /// When the request arrived.
    pub(crate) arrival: Timestamp,
    /// From arrival to answer.
    pub(crate) duration: Ticks,
    /// The address that connected.
    pub(crate) client: IpAddr,
    /// The authenticated user; empty for none.
    pub(crate) user: String,
    /// The method.
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    /// The host that the client asked for.
    pub(crate) host: String,
    /// The program that asked; empty for none.
    pub(crate) user_agent: String,
    /// The status of the answer.
    pub(crate) status: u16,
    /// Bytes of the answer's body.
    pub(crate) bytes: u64,
    /// Attributes of the policy, where a format has them, such as `api_key`.
    pub(crate) attributes: Vec<(String, String)>,
}

impl Truth {
    /// A plain request, for tests that care about some of its fields.
    #[must_use]
    pub(crate) fn new(arrival: Timestamp, client: IpAddr) -> Self {
        Self {
            arrival,
            duration: Ticks::from_millis(12),
            client,
            user: String::new(),
            method: "GET".to_owned(),
            target: "/".to_owned(),
            host: "api.example.com".to_owned(),
            user_agent: "curl/8.5.0".to_owned(),
            status: 200,
            bytes: 512,
            attributes: Vec::new(),
        }
    }

    /// When the answer ended.
    #[must_use]
    pub(crate) fn end(&self) -> Timestamp {
        self.arrival + self.duration
    }
}

/// A format as one server writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Style {
    /// The common log format.
    Common,
    /// The combined log format.
    Combined,
    /// Combined with `$request_time`.
    CombinedTime,
    /// Combined with `$msec` and `$request_time`.
    CombinedMsec,
    /// Envoy's JSON.
    Envoy,
    /// A load balancer of AWS.
    Alb,
    /// Caddy's JSON.
    Caddy,
    /// Traefik's JSON.
    Traefik,
    /// HAProxy's `option httplog`.
    Haproxy,
    /// HAProxy through syslog.
    HaproxySyslog,
    /// CSV with a header.
    Csv,
    /// One JSON object a line.
    Ndjson,
    /// An HTTP archive.
    Har,
    /// Tollgate's decisions.
    Decisions,
}

impl Style {
    /// All styles.
    pub(crate) const ALL: [Style; 14] = [
        Style::Common,
        Style::Combined,
        Style::CombinedTime,
        Style::CombinedMsec,
        Style::Envoy,
        Style::Alb,
        Style::Caddy,
        Style::Traefik,
        Style::Haproxy,
        Style::HaproxySyslog,
        Style::Csv,
        Style::Ndjson,
        Style::Har,
        Style::Decisions,
    ];

    /// The format that a reader finds in it.
    #[must_use]
    pub(crate) const fn format(self) -> Format {
        match self {
            Self::Common => Format::Common,
            Self::Combined | Self::CombinedTime | Self::CombinedMsec => Format::Combined,
            Self::Envoy => Format::Envoy,
            Self::Alb => Format::Alb,
            Self::Caddy => Format::Caddy,
            Self::Traefik => Format::Traefik,
            Self::Haproxy | Self::HaproxySyslog => Format::Haproxy,
            Self::Csv => Format::Csv,
            Self::Ndjson => Format::Ndjson,
            Self::Har => Format::Har,
            Self::Decisions => Format::Decisions,
        }
    }

    /// How fine its stamps are.
    #[must_use]
    pub(crate) const fn precision(self) -> Precision {
        match self {
            Self::Common | Self::Combined | Self::CombinedTime => Precision::Second,
            _ => Precision::Exact,
        }
    }

    /// Whether it has durations.
    #[must_use]
    pub(crate) const fn has_duration(self) -> bool {
        !matches!(self, Self::Common | Self::Combined | Self::Decisions)
    }

    /// The unit in which it writes time: the arrival that is read is exact to twice of it, since an end and a duration
    /// are each cut to it.
    #[must_use]
    pub(crate) const fn unit(self) -> Ticks {
        match self {
            Self::Common | Self::Combined | Self::CombinedTime => Ticks::from_secs(1),
            Self::Alb | Self::Caddy | Self::Traefik | Self::Csv | Self::Ndjson => Ticks::ONE,
            _ => Ticks::from_millis(1),
        }
    }

    /// A whole log. Servers write a line when the answer ends, so the lines are in that order; an archive and decisions
    /// are in the order of arrival.
    #[must_use]
    pub(crate) fn log(self, requests: &[Truth]) -> Vec<u8> {
        let mut order: Vec<&Truth> = requests.iter().collect();
        match self {
            Self::Har | Self::Decisions => order.sort_by_key(|truth| truth.arrival),
            _ => order.sort_by_key(|truth| truth.end()),
        }
        let mut out = self.header().to_owned();
        for (place, truth) in order.iter().enumerate() {
            if self == Self::Har && place > 0 {
                out.push_str(",\n");
            }
            self.line(truth, &mut out);
            if self != Self::Har {
                out.push('\n');
            }
        }
        out.push_str(if self == Self::Har { "]}}\n" } else { "" });
        out.into_bytes()
    }

    /// The text before the first request, with its line end.
    #[must_use]
    pub(crate) const fn header(self) -> &'static str {
        match self {
            Self::Csv => "time,client_ip,user,method,path,host,user_agent,status,bytes,duration_us,api_key\n",
            Self::Har => {
                "{\"log\":{\"version\":\"1.2\",\"creator\":{\"name\":\"tollgate\",\"version\":\"0\"},\"entries\":[\n"
            }
            _ => "",
        }
    }

    /// One request, without a line end.
    pub(crate) fn line(self, truth: &Truth, out: &mut String) {
        match self {
            Self::Common | Self::Combined | Self::CombinedTime | Self::CombinedMsec => self.clf(truth, out),
            Self::Envoy => envoy(truth, out),
            Self::Alb => alb(truth, out),
            Self::Caddy => caddy(truth, out),
            Self::Traefik => traefik(truth, out),
            Self::Haproxy => haproxy(truth, out),
            Self::HaproxySyslog => {
                let date = Date::of(truth.end());
                let (day, clock) = (date.day, date.clock());
                add(out, format_args!("{} {day:>2} {clock} lb1 haproxy[14389]: ", date.month_name()));
                haproxy(truth, out);
            }
            Self::Csv => csv(truth, out),
            Self::Ndjson => ndjson(truth, out),
            Self::Har => har(truth, out),
            Self::Decisions => decision(truth, out),
        }
    }

    fn clf(self, truth: &Truth, out: &mut String) {
        let Truth { client, method, status, bytes, .. } = truth;
        let end = truth.end();
        let date = Date::of(end);
        let (user, target) = (Dashed(&truth.user), Escaped(&truth.target));
        let day =
            format_args!("{:02}/{}/{}:{}", date.day, date.month_name(), date.year, date.clock()).to_string();
        add(
            out,
            format_args!("{client} - {user} [{day} +0000] \"{method} {target} HTTP/1.1\" {status} {bytes}"),
        );
        if self != Self::Common {
            add(out, format_args!(" \"-\" \"{}\"", Dashed(&truth.user_agent)));
        }
        if self == Self::CombinedMsec {
            let millis = end.unix_micros() / 1_000;
            add(out, format_args!(" {}.{:03}", millis / 1_000, millis % 1_000));
        }
        if matches!(self, Self::CombinedMsec | Self::CombinedTime) {
            let millis = truth.duration.as_micros() / 1_000;
            add(out, format_args!(" {}.{:03}", millis / 1_000, millis % 1_000));
        }
    }
}

fn add(out: &mut String, text: std::fmt::Arguments<'_>) {
    // A String takes everything.
    let _ = out.write_fmt(text);
}

/// A day of the Gregorian calendar and a time of day, in UTC.
struct Date {
    year: u64,
    month: usize,
    day: u64,
    second: u64,
    micros: u64,
}

impl Date {
    fn of(at: Timestamp) -> Self {
        let (seconds, micros) = (at.unix_micros() / 1_000_000, at.unix_micros() % 1_000_000);
        let (mut days, second) = (seconds / 86_400, seconds % 86_400);
        let (mut year, mut month) = (1_970, 0);
        let is_leap =
            |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
        while days >= 365 + u64::from(is_leap(year)) {
            days -= 365 + u64::from(is_leap(year));
            year += 1;
        }
        let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        while days >= lengths[month] {
            days -= lengths[month];
            month += 1;
        }
        Self { year, month: month + 1, day: days + 1, second, micros }
    }

    fn month_name(&self) -> &'static str {
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"][self.month - 1]
    }

    fn clock(&self) -> String {
        format!("{:02}:{:02}:{:02}", self.second / 3_600, self.second / 60 % 60, self.second % 60)
    }

    /// RFC 3339 with three or six digits of the second.
    fn rfc3339(&self, digits: usize) -> String {
        let fraction = format!("{:06}", self.micros);
        let Self { year, month, day, .. } = self;
        format!("{year:04}-{month:02}-{day:02}T{}.{}Z", self.clock(), &fraction[..digits])
    }
}

fn rfc3339(at: Timestamp, digits: usize) -> String {
    Date::of(at).rfc3339(digits)
}

/// A text as nginx escapes it.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for byte in self.0.bytes() {
            match byte {
                b'"' | b'\\' | 0..32 | 127.. => write!(out, "\\x{byte:02X}")?,
                byte => out.write_char(char::from(byte))?,
            }
        }
        Ok(())
    }
}

/// A text as HAProxy escapes it.
struct Hashed<'a>(&'a str);

impl std::fmt::Display for Hashed<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for byte in self.0.bytes() {
            match byte {
                b'"' | b'#' | b'{' | b'|' | b'}' | 0..32 | 127.. => write!(out, "#{byte:02X}")?,
                byte => out.write_char(char::from(byte))?,
            }
        }
        Ok(())
    }
}

/// A text as nginx escapes it, with `-` for nothing.
struct Dashed<'a>(&'a str);

impl std::fmt::Display for Dashed<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { out.write_str("-") } else { Escaped(self.0).fmt(out) }
    }
}

/// A text in the quotes of JSON.
struct Quoted<'a>(&'a str);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_char('"')?;
        for letter in self.0.chars() {
            match letter {
                '"' | '\\' => write!(out, "\\{letter}")?,
                '\0'..' ' => write!(out, "\\u{:04x}", u32::from(letter))?,
                letter => out.write_char(letter)?,
            }
        }
        out.write_char('"')
    }
}

/// An address and a port, with brackets around IPv6.
struct WithPort(IpAddr);

impl std::fmt::Display for WithPort {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V4(address) => write!(out, "{address}:41342"),
            IpAddr::V6(address) => write!(out, "[{address}]:41342"),
        }
    }
}

fn envoy(truth: &Truth, out: &mut String) {
    let (start, millis) = (rfc3339(truth.arrival, 3), truth.duration.as_micros() / 1_000);
    let (status, bytes, client) = (truth.status, truth.bytes, WithPort(truth.client));
    let (method, path, host) = (Quoted(&truth.method), Quoted(&truth.target), Quoted(&truth.host));
    let flags = if status == 429 { "RL" } else { "-" };
    add(
        out,
        format_args!(
            "{{\"start_time\":\"{start}\",\"method\":{method},\"x-envoy-origin-path\":{path},\"protocol\":\"HTTP/1.1\",\
             \"response_code\":{status},\"response_flags\":\"{flags}\",\"bytes_received\":0,\"bytes_sent\":{bytes},\
             \"duration\":{millis},\"x-forwarded-for\":null,\"user-agent\":{},\"x-request-id\":\"6f1c\",\
             \":authority\":{host},\"upstream_host\":\"10.0.0.7:8080\",\"downstream_remote_address\":\"{client}\",\
             \"route_name\":\"httproute/default/api/rule/0\"}}",
            Quoted(&truth.user_agent)
        ),
    );
}

fn alb(truth: &Truth, out: &mut String) {
    let (end, created) = (rfc3339(truth.end(), 6), rfc3339(truth.arrival, 6));
    let millis = truth.duration.as_micros() / 1_000;
    let Truth { method, host, status, bytes, .. } = truth;
    let (client, target, agent) = (WithPort(truth.client), Escaped(&truth.target), Dashed(&truth.user_agent));
    add(
        out,
        format_args!(
            "https {end} app/api/50dc6c495c0c9188 {client} 10.0.0.7:80 0.000 {}.{:03} 0.000 {status} {status} 34 {bytes} \
             \"{method} https://{host}:443{target} HTTP/1.1\" \"{agent}\" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 \
             arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/api/73e2d6bc24d8a067 \
             \"Root=1-58337281-1d84f3d73c47ec4e58577259\" \"{host}\" \"-\" 1 {created} \"forward\" \"-\" \"-\" \
             \"10.0.0.7:80\" \"{status}\" \"-\" \"-\" TID_1",
            millis / 1_000,
            millis % 1_000,
        ),
    );
}

fn caddy(truth: &Truth, out: &mut String) {
    let (end, duration) = (truth.end().unix_micros(), truth.duration.as_micros());
    let Truth { client, status, bytes, .. } = truth;
    let (method, host, uri) = (Quoted(&truth.method), Quoted(&truth.host), Quoted(&truth.target));
    let (user, agent) = (Quoted(&truth.user), Quoted(&truth.user_agent));
    add(
        out,
        format_args!(
            "{{\"level\":\"info\",\"ts\":{}.{:06},\"logger\":\"http.log.access\",\"msg\":\"handled request\",\"request\":\
             {{\"remote_ip\":\"{client}\",\"remote_port\":\"41342\",\"client_ip\":\"{client}\",\"proto\":\"HTTP/2.0\",\
             \"method\":{method},\"host\":{host},\"uri\":{uri},\"headers\":{{\"User-Agent\":[{agent}],\
             \"Authorization\":[\"REDACTED\"],\"Accept\":[\"*/*\"]}}}},\"bytes_read\":0,\"user_id\":{user},\
             \"duration\":{}.{:06},\"size\":{bytes},\"status\":{status},\"resp_headers\":{{\"Server\":[\"Caddy\"]}}}}",
            end / 1_000_000,
            end % 1_000_000,
            duration / 1_000_000,
            duration % 1_000_000,
        ),
    );
}

fn traefik(truth: &Truth, out: &mut String) {
    let (start, end) = (rfc3339(truth.arrival, 6), rfc3339(truth.end(), 3));
    let nanos = truth.duration.as_micros().saturating_mul(1_000);
    let Truth { client, status, bytes, .. } = truth;
    let (method, host, path) = (Quoted(&truth.method), Quoted(&truth.host), Quoted(&truth.target));
    let user = if truth.user.is_empty() { "-" } else { &truth.user };
    add(
        out,
        format_args!(
            "{{\"ClientAddr\":\"{}\",\"ClientHost\":\"{client}\",\"ClientPort\":\"41342\",\"ClientUsername\":{},\
             \"DownstreamContentSize\":{bytes},\"DownstreamStatus\":{status},\"Duration\":{nanos},\"OriginStatus\":{status},\
             \"RequestCount\":7,\"RequestHost\":{host},\"RequestMethod\":{method},\"RequestPath\":{path},\
             \"RequestProtocol\":\"HTTP/1.1\",\"RouterName\":\"api@docker\",\"StartLocal\":\"{start}\",\
             \"StartUTC\":\"{start}\",\"entryPointName\":\"web\",\"level\":\"info\",\"msg\":\"\",\
             \"request_User-Agent\":{},\"time\":\"{end}\"}}",
            WithPort(truth.client),
            Quoted(user),
            Quoted(&truth.user_agent),
        ),
    );
}

fn haproxy(truth: &Truth, out: &mut String) {
    let date = Date::of(truth.arrival);
    let stamp = format!(
        "{:02}/{}/{}:{}.{:03}",
        date.day,
        date.month_name(),
        date.year,
        date.clock(),
        date.micros / 1_000
    );
    let Truth { client, method, status, bytes, .. } = truth;
    let (target, millis) = (Hashed(&truth.target), truth.duration.as_micros() / 1_000);
    add(
        out,
        format_args!(
            "{client}:41342 [{stamp}] http-in api/srv1 0/0/1/{millis}/{millis} {status} {bytes} - - ---- 1/1/1/1/0 0/0 \
             {{{}}} \"{method} {target} HTTP/1.1\"",
            truth.host
        ),
    );
}

/// The attribute that tables and decisions have.
fn api_key(truth: &Truth) -> &str {
    truth.attributes.iter().find(|(name, _)| name == "api_key").map_or("", |(_, value)| value)
}

fn csv(truth: &Truth, out: &mut String) {
    let cell = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let cells = [
        rfc3339(truth.arrival, 6),
        truth.client.to_string(),
        cell(&truth.user),
        truth.method.clone(),
        cell(&truth.target),
        truth.host.clone(),
        cell(&truth.user_agent),
        truth.status.to_string(),
        truth.bytes.to_string(),
        truth.duration.as_micros().to_string(),
        cell(api_key(truth)),
    ];
    out.push_str(&cells.join(","));
}

fn ndjson(truth: &Truth, out: &mut String) {
    let Truth { client, status, bytes, .. } = truth;
    let (time, micros) = (rfc3339(truth.arrival, 6), truth.duration.as_micros());
    let (method, path, host) = (Quoted(&truth.method), Quoted(&truth.target), Quoted(&truth.host));
    let (user, agent, key) = (Quoted(&truth.user), Quoted(&truth.user_agent), Quoted(api_key(truth)));
    add(
        out,
        format_args!(
            "{{\"time\":\"{time}\",\"client_ip\":\"{client}\",\"user\":{user},\"method\":{method},\"path\":{path},\
             \"host\":{host},\"user_agent\":{agent},\"status\":{status},\"bytes\":{bytes},\"duration_us\":{micros},\
             \"api_key\":{key}}}"
        ),
    );
}

fn har(truth: &Truth, out: &mut String) {
    let (start, millis) = (rfc3339(truth.arrival, 3), truth.duration.as_micros() / 1_000);
    let Truth { status, bytes, .. } = truth;
    let url = format!("https://{}{}", truth.host, truth.target);
    let (method, url, agent) = (Quoted(&truth.method), Quoted(&url), Quoted(&truth.user_agent));
    add(
        out,
        format_args!(
            "{{\"startedDateTime\":\"{start}\",\"time\":{millis},\"request\":{{\"method\":{method},\"url\":{url},\
             \"httpVersion\":\"HTTP/2\",\"headers\":[{{\"name\":\"User-Agent\",\"value\":{agent}}}]}},\
             \"response\":{{\"status\":{status},\"bodySize\":{bytes},\"content\":{{\"size\":{bytes}}}}},\"timings\":{{}}}}"
        ),
    );
}

fn decision(truth: &Truth, out: &mut String) {
    let allowed = truth.status != 429;
    let verdict = if allowed { "allow" } else { "deny" };
    let mut attributes = format!(
        "\"ip\":\"{}\",\"method\":{},\"path\":{}",
        truth.client,
        Quoted(&truth.method),
        Quoted(&truth.target)
    );
    for (name, value) in &truth.attributes {
        add(&mut attributes, format_args!(",{}:{}", Quoted(name), Quoted(value)));
    }
    let at = rfc3339(truth.arrival, 3);
    add(
        out,
        format_args!(
            "{{\"at\":\"{at}\",\"wire\":\"http\",\"allowed\":{allowed},\"verdict\":\"{verdict}\",\"limit\":\"per-key\",\
             \"attributes\":{{{attributes}}},\"source\":\"exact\"}}"
        ),
    );
}
