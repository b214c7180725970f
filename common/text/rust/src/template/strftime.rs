//! datetime.strftime in UTC and the C locale, for strftime_now.

use std::fmt::Write;

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

struct Moment {
    seconds: i64,
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    /// Days since Sunday.
    weekday: i64,
    /// 1 on January 1st.
    yearday: i64,
}

/// Days since 1970 → (year, month, day): Howard Hinnant's civil_from_days.
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let (era, doe) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

fn leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

impl Moment {
    fn new(unix_seconds: i64) -> Self {
        // The years that Python's datetime knows: 1 to 9999.
        let seconds = unix_seconds.clamp(-62_135_596_800, 253_402_300_799);
        let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month as usize - 1];
        Self {
            seconds,
            year,
            month,
            day,
            hour: rest / 3600,
            minute: rest / 60 % 60,
            second: rest % 60,
            weekday: (days + 4).rem_euclid(7),
            yearday: before + day + i64::from(month > 2 && leap(year)),
        }
    }

    /// ISO 8601's year and week.
    fn iso(&self) -> (i64, i64) {
        let monday = (self.weekday + 6) % 7;
        let week = (self.yearday - 1 - monday + 10) / 7;
        let weeks = |year: i64| {
            let p = |y: i64| (y + y / 4 - y / 100 + y / 400) % 7;
            52 + i64::from(p(year) == 4 || p(year - 1) == 3)
        };
        match week {
            0 => (self.year - 1, weeks(self.year - 1)),
            w if w > weeks(self.year) => (self.year + 1, 1),
            w => (self.year, w),
        }
    }
}

pub fn strftime(format: &str, unix_seconds: i64) -> String {
    let mut out = String::new();
    write_format(&mut out, format, &Moment::new(unix_seconds));
    out
}

fn write_format(out: &mut String, format: &str, t: &Moment) {
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let rest = chars.as_str();
        let mut directive = chars.next();
        // glibc's flags: no padding, spaces, zeros.
        let flag = directive.filter(|c| matches!(c, '-' | '_' | '0'));
        if flag.is_some() {
            directive = chars.next();
        }
        let mut pad = |value: i64, width: usize, fill: char| {
            _ = match flag.unwrap_or(fill) {
                '-' => write!(out, "{value}"),
                '_' => write!(out, "{value:>width$}"),
                _ => write!(out, "{value:0>width$}"),
            };
        };
        let twelve = if t.hour % 12 == 0 { 12 } else { t.hour % 12 };
        match directive {
            Some('Y') => pad(t.year, 4, '-'),
            Some('C') => pad(t.year / 100, 2, '0'),
            Some('y') => pad(t.year % 100, 2, '0'),
            Some('m') => pad(t.month, 2, '0'),
            Some('d') => pad(t.day, 2, '0'),
            Some('e') => pad(t.day, 2, '_'),
            Some('H') => pad(t.hour, 2, '0'),
            Some('k') => pad(t.hour, 2, '_'),
            Some('I') => pad(twelve, 2, '0'),
            Some('l') => pad(twelve, 2, '_'),
            Some('M') => pad(t.minute, 2, '0'),
            Some('S') => pad(t.second, 2, '0'),
            Some('f') => out.push_str("000000"),
            Some('j') => pad(t.yearday, 3, '0'),
            Some('u') => pad((t.weekday + 6) % 7 + 1, 1, '0'),
            Some('w') => pad(t.weekday, 1, '0'),
            Some('U') => pad((t.yearday + 6 - t.weekday) / 7, 2, '0'),
            Some('W') => pad((t.yearday + 6 - (t.weekday + 6) % 7) / 7, 2, '0'),
            Some('V') => pad(t.iso().1, 2, '0'),
            Some('G') => pad(t.iso().0, 4, '-'),
            Some('g') => pad(t.iso().0 % 100, 2, '0'),
            Some('s') => pad(t.seconds, 1, '0'),
            Some('A') => out.push_str(DAYS[t.weekday as usize]),
            Some('a') => out.push_str(&DAYS[t.weekday as usize][..3]),
            Some('B') => out.push_str(MONTHS[t.month as usize - 1]),
            Some('b' | 'h') => out.push_str(&MONTHS[t.month as usize - 1][..3]),
            Some('p') => out.push_str(if t.hour < 12 { "AM" } else { "PM" }),
            Some('P') => out.push_str(if t.hour < 12 { "am" } else { "pm" }),
            Some('D' | 'x') => write_format(out, "%m/%d/%y", t),
            Some('F') => write_format(out, "%Y-%m-%d", t),
            Some('T' | 'X') => write_format(out, "%H:%M:%S", t),
            Some('R') => write_format(out, "%H:%M", t),
            Some('r') => write_format(out, "%I:%M:%S %p", t),
            Some('c') => write_format(out, "%a %b %e %H:%M:%S %Y", t),
            // A naive datetime has no zone.
            Some('z' | 'Z') => {}
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('%') => out.push('%'),
            _ => {
                out.push('%');
                chars = rest.chars();
            }
        }
    }
}
