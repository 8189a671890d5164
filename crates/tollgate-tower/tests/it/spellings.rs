//! One thing has one spelling: tables of paths, hosts, chains of proxies and addresses as clients, proxies and attackers write them.

use http::Request;
use tollgate::Policy;
use tollgate_tower::attributes::Reader;
use tollgate_tower::attributes::address::{Counted, Trusted};
use tollgate_tower::attributes::path::{EscapedSlashes, PathMatch, normalise};

/// Spellings of one path, line by line: what it is, and every way to write it.
const PATHS: &str = "
/ /. /./ /.. /../ /../.. // /// /.// //. /%2e /%2E /%2e%2e /%2E%2E/ /.%2e /%2e. /a/.. /a/%2e%2e /a/b/../.. /a/../b/.. /%61/..
/a /a /%61 /./a /../a /../../a //a ///a /b/../a /b/%2e%2e/a /%2e/a /%2e%2e/a /b/c/../../a /b/.%2e/a /b/%2e./a /x/y/z/../../../a /.//a
/a/ /a/ /a// /a/. /a/./ /a/b/.. /a/b/../ /%61/ /a/b/%2e%2e /a/%2e /a/%2E/ /a/.// /./a/ //a/ /a///
/a/b /a/b /a//b /a/./b /a/c/../b /%61/%62 /a/%62 /a/%2e/b /a/x/%2e%2e/b /a///b /a/.//b /a//./b /z/../a/b /a/b/c/../../b /a/%2E/%62
/login /login /%6Cogin /%6c%6f%67%69%6e /./login //login /x/../login /%6cogin /logi%6E /login/../login /x/%2e%2e/login
/v1/users/7 /v1/users/7 /v1//users/7 /v1/./users/7 /v1/users/./7 /v1/users//7 /v1/x/../users/7 /%76%31/users/7 /v1/users/%37 /v2/../v1/users/7 /v1/users/8/../7
/a.b /a.b /a%2Eb /a%2eb /./a.b
/a..b /a..b /a%2e.b /a%2E%2eb
/... /... /%2e%2e%2e /.%2e. /./...
/.a /.a /%2ea /./.a
/..a /..a /%2e.a /./..a
/a~b /a~b /a%7Eb /a%7eb
/a-b_c /a-b_c /a%2Db%5Fc /a%2db%5fc
/a:b@c /a:b@c /a%3Ab%40c /a%3ab%40c
/a!$&'()*+,= /a!$&'()*+,= /a%21%24%26%27%28%29%2A%2B%2C%3D
/a%20b /a%20b
/a%25b /a%25b
/%C3%A9 /%C3%A9 /%c3%a9 /%C3%a9
/a%3Fb /a%3Fb /a%3fb
/a%23b /a%23b
/a%22b /a%22b
/a%3Cb%3E /a%3Cb%3E /a%3cb%3e
/a;v=1 /a;v=1 /./a;v=1
/a%3Bv=1 /a%3Bv=1 /a%3bv=1
/A /A /%41
/a%7Bb%7D /a%7Bb%7D /a%7bb%7d
";

/// Paths that servers read differently, and that are refused.
const REFUSED_PATHS: &[&str] = &[
    "",
    "a",
    "a/b",
    "./a",
    "../a",
    "http:/a",
    "*",
    "%2fa",
    "/a%2fb",
    "/a%2Fb",
    "/%2f",
    "/%2F%2F",
    "/a%5cb",
    "/a%5Cb",
    "/%5c",
    "/a\\b",
    "/\\",
    "/a/..%2fb",
    "/..%5cb",
    "/a/%2e%2e%2fb",
    "/%",
    "/%2",
    "/%zz",
    "/%2z",
    "/%g0",
    "/a%",
    "/a%4",
    "/%%41",
    "/%u0041",
    "/a%00",
    "/%00",
    "/a%00b",
    "/a%0a",
    "/a%0d%0a",
    "/a%09",
    "/a%1f",
    "/a%7f",
    "/\u{7f}",
    "/a\tb",
    "/a\nb",
    "/%ff",
    "/%c0%af",
    "/%c0%ae",
    "/%e0%80%af",
    "/%f0%80%80%af",
    "/%c3",
    "/%c3%28",
    "/%ed%a0%80",
    "/%f8%88%80%80%80",
    "/%80",
    "/a%fe",
    "/x/..;/login",
    "/x/..;a=1/login",
    "/x/.;/login",
    "/..;",
    "/%2e%2e;/login",
    "/%2e;x/login",
    "/..%3b/login",
];

/// Every spelling is the one it stands for, and that one is its own.
#[test]
fn paths() {
    let mut seen = 0;
    for line in PATHS.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        let one = words.next().unwrap();
        for spelling in words {
            assert_eq!(normalise(spelling, EscapedSlashes::Reject).unwrap(), one, "{spelling}");
            assert_eq!(normalise(one, EscapedSlashes::Reject).unwrap(), one);
            seen += 1;
        }
    }
    for wrong in REFUSED_PATHS {
        assert!(normalise(wrong, EscapedSlashes::Reject).is_err(), "{wrong:?}");
        seen += 1;
    }
    assert!(seen > 150, "{seen}");
}

/// Spellings that many servers take for one path, and the limits that a path of a condition means: line by line the path that a limit
/// names, the spellings that it is for, and behind a bar those that it is not for.
#[test]
fn loose_paths() {
    let table = "
/login /login /LOGIN /Login /login/ /LOGIN/ /login;x /login;x=1/ /login. /login%20 /login%2E /%4Cogin /login//x/.. /login.json /login%2ejson /login%2Ea.b /LOGIN.Xml/ /login.json;x /login/.json /log%C4%B1n /LOG%c4%b0N | /x.login /login.json/x /logins /login/x /log /login%3Bx /login,x
/Login/ /login /Login /login/ /LOGIN;x | /loginx
/files/report.pdf /files/report.pdf /FILES/Report.PDF /files/report.pdf.json | /files/report /files/report.html
/search/keys /%C5%BFearch/%E2%84%AAeys /SEARCH/%e2%84%aaEYS /%C5%BFEARCH/KEY%C5%BF.json | /%C3%9Fearch/keys
/caf%C3%A9 /caf%C3%A9 /CAF%C3%89/ | /cafe
/api/* /%41pi/x /API/x /api/x/ /Api/X;y/z /api /api/ /API;x | /apis /
/ / /;x | /x
";
    let mut seen = 0;
    for line in table.lines().filter(|line| !line.is_empty()) {
        let (limit, spellings) = line.split_once(' ').unwrap();
        let (met, others) = spellings.split_once(" | ").unwrap();
        let document = format!("limits: [{{name: a, when: {{path: '{limit}'}}, rate: 1/s}}]");
        let policy = Policy::compile("policy.yaml", document.as_bytes()).unwrap();
        for (spellings, is_met) in [(met, true), (others, false)] {
            for spelling in spellings.split(' ') {
                let meets = |paths| {
                    let (parts, ()) = Request::get(spelling).body(()).unwrap().into_parts();
                    let reader = Reader { paths, ..Reader::default() };
                    let attributes = reader.of_request("203.0.113.7".parse().ok(), &parts).unwrap();
                    // Requests count by the normalised spelling, however limits are matched.
                    let one = normalise(spelling, EscapedSlashes::Reject).unwrap();
                    assert_eq!(attributes.get("path"), Some(&*one));
                    !policy.matches(&attributes.request().unwrap()).unwrap().is_empty()
                };
                assert_eq!(meets(PathMatch::Loose), is_met, "{limit} {spelling}");
                let is_same = normalise(spelling, EscapedSlashes::Reject).unwrap() == limit;
                assert!(limit.contains('*') || meets(PathMatch::Exact) == is_same, "{limit} {spelling}");
                seen += 1;
            }
        }
    }
    assert!(seen > 30, "{seen}");
}

/// Where the config accepts escaped slashes, they have one meaning each.
#[test]
fn escaped_slashes() {
    for (path, kept, decoded) in [
        ("/a%2fb", "/a%2Fb", "/a/b"),
        ("/a%2Fb", "/a%2Fb", "/a/b"),
        ("/a%5cb", "/a%5Cb", "/a/b"),
        ("/a\\b", "/a%5Cb", "/a/b"),
        ("/a/..%2fb", "/a/..%2Fb", "/b"),
        ("/a%2f..%2fb", "/a%2F..%2Fb", "/b"),
        ("/a%2f%2fb", "/a%2F%2Fb", "/a/b"),
        ("/%2e%2e%2fa", "/..%2Fa", "/a"),
        ("/a/%2e%2e%5cb", "/a/..%5Cb", "/b"),
    ] {
        assert_eq!(normalise(path, EscapedSlashes::Keep).unwrap(), kept, "{path}");
        assert_eq!(normalise(path, EscapedSlashes::Decode).unwrap(), decoded, "{path}");
    }
}

/// The host as limits see it, and as it is sent on.
fn host_of(host: &str) -> Option<(String, String)> {
    let request = Request::get("/").header("host", host).body(()).ok()?;
    let (parts, ()) = request.into_parts();
    let reader = Reader::default();
    let attributes = reader.of_request("203.0.113.7".parse().ok(), &parts).ok()?;
    let host = attributes.get("host").unwrap_or("-").to_owned();
    Some((host, attributes.host_and_port().unwrap_or("-").to_owned()))
}

/// Hosts, line by line as above.
#[test]
fn hosts() {
    let table = "
example.com example.com EXAMPLE.COM Example.Com example.com. EXAMPLE.com. example.com:80 example.com:443 example.com.:80 Example.COM.:443 eXaMpLe.CoM
example.com example.com: example.com:080 example.com:0443 example.com:00080 example.com.: example.com:1|example.com:1 example.com:01|example.com:1
example.com example.com:8080|example.com:8080 EXAMPLE.COM:08080|example.com:8080 example.com.:8080|example.com:8080 example.com:65535|example.com:65535
api.example.com api.example.com API.example.com Api.Example.Com.:443 api.example.com:1|api.example.com:1
localhost localhost LOCALHOST localhost. localhost:80 localhost:3000|localhost:3000 LocalHost:3000|localhost:3000
127.0.0.1 127.0.0.1 127.0.0.1:80 127.0.0.1:443 127.0.0.1. 127.0.0.1:8000|127.0.0.1:8000
[::1] [::1] [::1]:80 [::1]:443 [::1]: [0:0:0:0:0:0:0:1] [::0001]:080 [::1]:8000|[::1]:8000 [0::1]:08000|[::1]:8000
[2001:db8::1] [2001:db8::1] [2001:DB8::1] [2001:DB8::1]:443 [2001:db8:0:0:0:0:0:1]
[::ffff:1.2.3.4] [::ffff:1.2.3.4] [::ffff:102:304]
xn--bcher-kva.example xn--bcher-kva.example XN--BCHER-KVA.example XN--bcher-kva.EXAMPLE.
a-b.c_d.example a-b.c_d.example A-B.C_D.EXAMPLE
";
    let mut seen = 0;
    for line in table.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        let one = words.next().unwrap();
        // Behind a bar is what is sent on, where that is more than the name.
        for (spelling, whole) in words.map(|word| word.split_once('|').unwrap_or((word, one))) {
            assert_eq!(host_of(spelling), Some((one.to_owned(), whole.to_owned())), "{spelling}");
            assert_eq!(host_of(whole), host_of(spelling), "{spelling}");
            seen += 1;
        }
    }
    for wrong in [
        "user@example.com",
        "user:pass@example.com",
        "example.com/",
        "example.com/path",
        "example.com?x",
        "example.com#x",
        "a,b",
        "a, b",
        "a b",
        "example.com\\evil",
        "http://example.com",
        "@",
        "a@b:80",
        "example.com:abc",
        "example.com:0",
        "example.com:000",
        "example.com:65536",
        "example.com:99999",
        "example.com:+80",
        "example.com:-1",
        "example.com:80:80",
        "example.com::80",
        "example.com: 80",
        ":80",
        ":",
        ".",
        "..",
        ".example.com",
        "example..com",
        "example.com..",
        "example.com..:80",
        "a;b",
        "a;b:80",
        "a%41.com",
        "a*b",
        "*.example.com",
        "a!b",
        "a$b",
        "a(b)",
        "a=b",
        "a~b",
        "a\"b",
        "a<b>",
        "a|b",
        "a^b",
        "a{b}",
        "b\u{fc}cher.example",
        "::1",
        "[::1",
        "[::1]x",
        "[::1]80",
        "[::1]:x",
        "[::1]:99999",
        "[]",
        "[]:80",
        "[127.0.0.1]",
        "[fe80::1%25eth0]",
        "[fe80::1%eth0]",
        "[v1.x]",
        "x[::1]",
    ] {
        assert_eq!(host_of(wrong), None, "{wrong:?}");
        seen += 1;
    }
    assert!(seen > 110, "{seen}");
}

/// Chains of `X-Forwarded-For` behind proxies of 10.0.0.0/8 and fd00::/8: the peer, the lines of the header, and the client.
#[test]
fn chains() {
    let trusted =
        || Trusted::new(["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().unwrap()).to_vec());
    let table = "
203.0.113.7 | | 203.0.113.7
203.0.113.7 | 198.51.100.1 | 203.0.113.7
203.0.113.7 | 10.0.0.1 | 203.0.113.7
203.0.113.7 | 10.0.0.1, 10.0.0.2 | 203.0.113.7
203.0.113.7 | ::1 | 203.0.113.7
2001:db8::7 | 198.51.100.1 | 2001:db8::7
10.0.0.1 | | 10.0.0.1
10.0.0.1 | 198.51.100.1 | 198.51.100.1
10.0.0.1 | 198.51.100.1:4711 | 198.51.100.1
10.0.0.1 | 192.0.2.1, 198.51.100.1 | 198.51.100.1
10.0.0.1 | 192.0.2.1,198.51.100.1 | 198.51.100.1
10.0.0.1 | 192.0.2.1 , 198.51.100.1 | 198.51.100.1
10.0.0.1 | 198.51.100.1, 10.0.0.2 | 198.51.100.1
10.0.0.1 | 198.51.100.1, 10.0.0.2, 10.0.0.3 | 198.51.100.1
10.0.0.1 | 192.0.2.1, 198.51.100.1, 10.0.0.2 | 198.51.100.1
10.0.0.1 | 10.9.9.9, 198.51.100.1 | 198.51.100.1
10.0.0.1 | 10.9.9.9 | 10.9.9.9
10.0.0.1 | 10.9.9.9, 10.8.8.8 | 10.9.9.9
10.0.0.1 | 127.0.0.1, 198.51.100.1 | 198.51.100.1
10.0.0.1 | 198.51.100.1, 127.0.0.1 | 127.0.0.1
10.0.0.1 | unknown | 10.0.0.1
10.0.0.1 | unknown, 198.51.100.1 | 198.51.100.1
10.0.0.1 | 198.51.100.1, unknown | 10.0.0.1
10.0.0.1 | 198.51.100.1, unknown, 10.0.0.2 | 10.0.0.2
10.0.0.1 | _hidden, 198.51.100.1 | 198.51.100.1
10.0.0.1 | 198.51.100.1, _hidden | 10.0.0.1
10.0.0.1 | , | 10.0.0.1
10.0.0.1 | 198.51.100.1, | 10.0.0.1
10.0.0.1 | ,198.51.100.1 | 198.51.100.1
10.0.0.1 | 198.51.100.1,,10.0.0.2 | 10.0.0.2
10.0.0.1 | 198.51.100.1 10.0.0.2 | 10.0.0.1
10.0.0.1 | 198.51.100.1; 10.0.0.2 | 10.0.0.1
10.0.0.1 | 198.51.100.256 | 10.0.0.1
10.0.0.1 | 198.51.100 | 10.0.0.1
10.0.0.1 | 0xc6336401 | 10.0.0.1
10.0.0.1 | 3325256705 | 10.0.0.1
10.0.0.1 | 0306.063.0144.01 | 10.0.0.1
10.0.0.1 | 198.51.100.01 | 10.0.0.1
10.0.0.1 | 198.51.100.1:99999 | 10.0.0.1
10.0.0.1 | 198.51.100.1:x | 10.0.0.1
10.0.0.1 | 198.51.100.1: | 10.0.0.1
10.0.0.1 | http://198.51.100.1 | 10.0.0.1
10.0.0.1 | 2001:db8::1 | 2001:db8::1
10.0.0.1 | [2001:db8::1] | 2001:db8::1
10.0.0.1 | [2001:db8::1]:4711 | 2001:db8::1
10.0.0.1 | [2001:db8::1]:x | 10.0.0.1
10.0.0.1 | [2001:db8::1 | 10.0.0.1
10.0.0.1 | 2001:db8::1] | 10.0.0.1
10.0.0.1 | 2001:DB8:0:0:0:0:0:1 | 2001:db8::1
10.0.0.1 | ::ffff:198.51.100.1 | ::ffff:198.51.100.1
10.0.0.1 | ::ffff:10.0.0.2 | ::ffff:10.0.0.2
10.0.0.1 | 198.51.100.1, ::ffff:10.0.0.2 | 198.51.100.1
10.0.0.1 | 198.51.100.1, fd00::2 | 198.51.100.1
10.0.0.1 | 198.51.100.1, [fd00::2]:80 | 198.51.100.1
10.0.0.1 | 2001:db8::1%eth0 | 2001:db8::1
10.0.0.1 | [fe80::1%25eth0]:80 | fe80::1
10.0.0.1 | 198.51.100.1, fd00::2%1 | 198.51.100.1
10.0.0.1 | 2001:db8::1% | 10.0.0.1
10.0.0.1 | 198.51.100.1%eth0 | 10.0.0.1
fd00::1 | 198.51.100.1 | 198.51.100.1
fd00::1 | | fd00::1
fd00::1 | 2001:db8::1, fd00::2 | 2001:db8::1
::ffff:10.0.0.1 | 198.51.100.1 | 198.51.100.1
::ffff:203.0.113.7 | 198.51.100.1 | ::ffff:203.0.113.7
fc00::1 | 198.51.100.1 | fc00::1
11.0.0.1 | 198.51.100.1 | 11.0.0.1
9.255.255.255 | 198.51.100.1 | 9.255.255.255
10.255.255.255 | 198.51.100.1 | 198.51.100.1
";
    let mut seen = 0;
    for line in table.lines().filter(|line| !line.is_empty()) {
        let [peer, forwarded, client] = line.split(" | ").collect::<Vec<_>>()[..] else {
            let [peer, client] = line.split(" | | ").collect::<Vec<_>>()[..] else { panic!("{line}") };
            assert_eq!(
                trusted().client(peer.parse().unwrap(), std::iter::empty()).to_string(),
                client,
                "{line}"
            );
            seen += 1;
            continue;
        };
        let read = trusted().client(peer.parse().unwrap(), [forwarded.as_bytes()].into_iter());
        assert_eq!(read.to_string(), client, "{line}");
        seen += 1;
        // The same in a line for each hop, as some proxies write it.
        let lines: Vec<&[u8]> = forwarded.split(',').map(str::as_bytes).collect();
        let read = trusted().client(peer.parse().unwrap(), lines.into_iter());
        assert_eq!(read.to_string(), client, "{line}, in lines");
        seen += 1;
    }
    assert!(seen > 100, "{seen}");
}

/// Addresses as limits count them: one for all spellings of one client, and for all that one client may have.
#[test]
fn addresses() {
    let table = "
198.51.100.1 198.51.100.1 ::ffff:198.51.100.1 ::ffff:c633:6401 0:0:0:0:0:ffff:198.51.100.1 ::FFFF:C633:6401
2001:db8:1:2::/64 2001:db8:1:2::1 2001:db8:1:2:: 2001:DB8:1:2::1 2001:0db8:0001:0002:0000:0000:0000:0001 2001:db8:1:2:ffff:ffff:ffff:ffff 2001:db8:1:2:dead:beef::1
2001:db8:1:3::/64 2001:db8:1:3::1 2001:db8:1:3:1::
::/64 ::1 :: ::2 0:0:0:0:0:0:0:1
198.51.100.1 64:ff9b::198.51.100.1 64:ff9b::c633:6401 2002:c633:6401::1 2002:c633:6401:ffff:1:2:3:4
64:ff9b:1::/64 64:ff9b:1::198.51.100.1
64:ff9b:0:1::/64 64:ff9b:0:1::1
fe80::/64 fe80::1 fe80::dead:beef
";
    for line in table.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        let one = words.next().unwrap();
        for spelling in words {
            let counted = Counted { address: spelling.parse().unwrap(), ipv6_prefix: 64 };
            assert_eq!(counted.to_string(), one, "{spelling}");
        }
    }
    let prefixes = [
        (48, "2001:db8:1::/48"),
        (56, "2001:db8:1:200::/56"),
        (64, "2001:db8:1:2ff::/64"),
        (128, "2001:db8:1:2ff::9"),
    ];
    for (ipv6_prefix, one) in prefixes {
        let counted = Counted { address: "2001:db8:1:2ff::9".parse().unwrap(), ipv6_prefix };
        assert_eq!(counted.to_string(), one);
    }
}
