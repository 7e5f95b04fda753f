//! Random addresses with a secret where a password may stand, and with the mistakes that people make there.
//! A small grammar, so that 10,000 of them meet each form with each mistake.

#![allow(dead_code, unreachable_pub, reason = "each user has its own part")]

/// The password, which no output may have in it, in any case.
pub const SECRET: &str = "xq7wzk";

/// A generator that gives the same numbers for the same seed (`SplitMix64`).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let z = z ^ (z >> 31);
        usize::try_from(z % n as u64).unwrap()
    }

    pub fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

const SCHEMES: [&str; 24] = [
    "redis",
    "redis",
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "REDIS",
    "Redis-Cluster",
    "redis-sentinel",
    "rediss-sentinel",
    "valkey-sentinel",
    "redis-cluster",
    "rediss-cluster",
    "valkeys-cluster",
    "redlock",
    "redlocks",
    "unix",
    "unix",
    "redis+unix",
    "valkey+unix",
    "redis+sentinel",
    "http",
    "reddis",
    "",
];
const BEHIND_SCHEME: [&str; 10] = [
    "://", "://", "://", "://", "://", ":///", ":", ":/", "//", "",
];
/// In the middle of a password: most of these are to be written as `%…` there.
const ODD: [&str; 24] = [
    "", "", "", "", "", "", "#", "?", "/", "@", ":", "&", "%", ",", ";", "=", "+", "'", "\"", "[",
    "]", "\\", "%2F", " ",
];
const LOGINS: [&str; 16] = [
    "user:P@",
    "user:P@",
    "user:P@",
    ":P@",
    ":P@",
    "P@",
    "user:P",
    ":P",
    "P:@",
    "user:P%40",
    ":P%40",
    "user%3AP%40",
    "user:P@host:P@",
    "user:P@:P@",
    "user:P:P@",
    "user@P@",
];
const HOSTS: [&str; 12] = [
    "127.0.0.1:1",
    "127.0.0.1:1",
    "127.0.0.1:1",
    "[::1]:1",
    "",
    ":1",
    "127.0.0.1:0",
    "127.0.0.1:99999",
    "127.0.0.1:P",
    "[::1:1",
    "/run/none.sock",
    "/run/none",
];
const TAILS: [&str; 34] = [
    "",
    "",
    "/",
    "/",
    "/0",
    "/3",
    "/-1",
    "/P",
    "?P",
    "#P",
    "/?P",
    "/?P=P",
    "/0?x=P",
    "/?P&P",
    "?pass=P",
    "/?user=u&pass=P",
    "?db=1&pass=P&P",
    "?username=u&password=P",
    "?password=P&P=3",
    "/?master=main",
    "/?master=main&sentinel_pass=P",
    "/?master=main?sentinel_pass=P",
    "/?master=main;sentinel_pass=P",
    "/?master=main&sentinel_pass=P&P",
    "/?master=main&P",
    "/?master=main/P@h",
    "?protocol=P",
    "?protocol=resp3&protocol=P",
    "/user:P@/r.sock",
    "/:P@r.sock",
    "/r.sock?pass=P",
    "/r.sock?password=P@h",
    "/r.sock?P",
    "/0#P",
];

/// The secret, or two of them with an odd character between.
fn password(random: &mut Random) -> String {
    match random.one(&ODD) {
        "" => SECRET.to_owned(),
        odd => format!("{SECRET}{odd}{SECRET}"),
    }
}

fn filled(random: &mut Random, form: &str) -> String {
    let mut filled = String::new();
    for c in form.chars() {
        match c {
            'P' => filled.push_str(&password(random)),
            c => filled.push(c),
        }
    }
    filled
}

/// The address of a server, or what somebody took for one.
pub fn host(random: &mut Random) -> String {
    let login = match random.below(3) {
        0 => random.one(&LOGINS),
        _ => "",
    };
    let host = random.one(&HOSTS);
    let tail = match random.below(4) {
        0 => random.one(&TAILS),
        _ => "",
    };
    filled(random, &format!("{login}{host}{tail}"))
}

/// A URL, or what somebody took for one.
pub fn url(random: &mut Random) -> String {
    if random.below(10) == 0 {
        let scheme = random.one(&["redis", "valkey", "rediss"]);
        return format!("{scheme}://user:{SECRET}@127.0.0.1:1/0");
    }
    let login = random.one(&LOGINS);
    let mut hosts = random.one(&HOSTS).to_owned();
    while random.below(3) == 0 {
        let login = match random.below(4) {
            0 => random.one(&LOGINS),
            _ => "",
        };
        hosts = format!("{hosts},{login}{}", random.one(&HOSTS));
    }
    let (scheme, behind) = (random.one(&SCHEMES), random.one(&BEHIND_SCHEME));
    let tail = match random.one(&TAILS) {
        // The tail of a Unix socket is a part of its path, and no number of a database.
        "/P" if scheme.ends_with("unix") => "/0",
        tail => tail,
    };
    let rest = filled(random, &format!("{login}{hosts}{tail}"));
    format!("{scheme}{behind}{rest}")
}
