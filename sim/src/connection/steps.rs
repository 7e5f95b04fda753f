//! The steps of a schedule.

use std::{pin::Pin, time::Duration};

use fastrand::Rng;
use leasehold::sim::AnswerForm;

use super::{
    Caller, Play, PlayedAnswer, Task,
    line::{LineEnd, Refusal},
};
use crate::dice::{Point, mix};

type Step = fn(&mut Play, &mut Rng);

/// Each with its weight, which every seed multiplies by numbers of its own.
const STEPS: [(u32, Step); 11] = [
    (60, Play::one_task),
    (20, Play::all_tasks),
    (40, Play::new_callers),
    (8, Play::a_caller_goes),
    (30, Play::the_server_answers),
    (30, Play::bytes_come),
    (20, Play::all_comes),
    (4, Play::a_push),
    (15, Play::room),
    (8, Play::time_passes),
    (2, Play::a_fault),
];

const FAULTS: [(&str, Step); 11] = [
    ("the server closes the connection", |play, _| {
        play.end_line(LineEnd::Closed);
    }),
    ("the connection is reset", |play, _| {
        play.end_line(LineEnd::Reset);
    }),
    (
        "the socket refuses what is written",
        Play::refuse_by_an_error,
    ),
    ("the socket takes no byte, and says so", |play, _| {
        play.refuse(Refusal::Zero);
    }),
    ("the socket refuses to be flushed", |play, _| {
        play.refuse(Refusal::Flush);
    }),
    ("the server is to answer what was not asked", |play, _| {
        play.unasked();
    }),
    ("the reader is polled no more", |play, _| {
        play.is_frozen = true;
    }),
    ("the runtime of the reader ends", |play, _| {
        play.connection.end_runtime();
    }),
    ("the connection is closed", |play, _| {
        play.connection.close();
    }),
    ("the connection is void", |play, _| {
        play.void();
    }),
    ("the last owner leaves", |play, _| {
        play.connection.leave();
    }),
];

/// A schedule has at most so many steps.
const MOST_STEPS: u32 = 200;

/// Tasks that wake each other so often are going round in circles.
const MOST_TURNS: u32 = 100_000;

impl Play {
    pub(super) fn run(&mut self, seed: u64) {
        let mut rng = Rng::with_seed(mix(seed, 1));
        let weights = STEPS.map(|(weight, _)| weight * [0, 1, 4, 4, 4, 16][rng.usize(..6)]);
        let (sum, mut after) = (weights.iter().sum::<u32>(), 10);
        for _ in 0..rng.u32(10..=MOST_STEPS) {
            if sum == 0 || after == 0 || self.is_broken() {
                break;
            }
            after -= u32::from(self.is_closed());
            let Some(mut rng) = self.dice.chance(Point::Plan, 0, 1.0) else {
                continue;
            };
            let mut at = rng.u32(..sum);
            let chosen = weights.iter().position(|weight| {
                let is_it = at < *weight;
                at = at.wrapping_sub(*weight);
                is_it
            });
            STEPS[chosen.unwrap_or(0)].1(self, &mut rng);
            self.note();
        }
        self.calm();
        self.last();
    }

    fn note(&mut self) {
        self.steps += 1;
        let (sent, known) = (self.connection.sent(), self.connection.known());
        let line = self.line.lock();
        let come = (line.whole() + sent).saturating_sub(line.offered.len());
        let flags = [
            self.is_closed(),
            self.comes_back,
            line.is_idle(),
            line.failed.is_some(),
        ];
        let numbers = [sent, known, come].map(|it| it.min(100) as u64);
        let all = numbers.into_iter().chain(flags.map(u64::from));
        let state = all.fold(0, mix);
        self.seen.states.push(state);
        self.seen.schedule = mix(self.seen.schedule, state);
    }

    /// The next request, which is not polled yet.
    pub(super) fn request(
        &mut self,
        random: u64,
    ) -> (usize, Pin<Box<dyn Future<Output = PlayedAnswer>>>) {
        let mut rng = Rng::with_seed(random);
        let (form, commands) = match rng.u8(..4) {
            0 => (AnswerForm::Second, 2),
            1 => (AnswerForm::All, rng.usize(1..=4)),
            _ => (AnswerForm::First, 1),
        };
        let padding = rng.usize(..=self.longest);
        let mut line = self.line.lock();
        let number = line.asks(form, commands, padding);
        let answer = self.connection.ask(form, &line.played[number].commands);
        drop(line);
        self.say(|| format!("[{number}] is asked: {commands} commands, {form:?}"));
        (number, Box::pin(answer))
    }

    fn one_task(&mut self, rng: &mut Rng) {
        if rng.u8(..20) == 0 {
            self.count("turns of a reader that was not woken");
            self.turn();
        }
        self.drive_next(rng);
    }

    fn all_tasks(&mut self, rng: &mut Rng) {
        for _ in 0..MOST_TURNS {
            if self.is_broken() || !self.drive_next(rng) {
                return;
            }
        }
        self.line().breach("L2", "tasks wake each other for ever");
    }

    fn new_callers(&mut self, rng: &mut Rng) {
        let many = if self.has_burst && rng.u8(..8) == 0 {
            1_000
        } else {
            [1, 1, 3, 20][rng.usize(..4)]
        };
        if many == 1_000 {
            self.count("a thousand ask at once");
        }
        for _ in 0..many {
            if self.is_rogue {
                return;
            }
            let who = self.callers.len();
            let (number, answer) = self.request(rng.u64(..));
            self.callers.push(Some(Caller {
                number,
                answer,
                task: Task::new(who, &self.woken),
                is_elsewhere: rng.u8(..4) == 0,
                is_first: true,
                again: if many < 1_000 { rng.u32(..4) } else { 0 },
            }));
            if self.callers[who]
                .as_ref()
                .is_some_and(|caller| caller.is_elsewhere)
            {
                self.say(|| format!("[{number}] is asked elsewhere"));
                self.count("asked elsewhere");
            }
            self.poll_caller(who);
        }
    }

    fn a_caller_goes(&mut self, rng: &mut Rng) {
        let waits = |(who, caller): (usize, &Option<Caller>)| caller.as_ref().map(|_| who);
        let waiting: Vec<_> = self.callers.iter().enumerate().filter_map(waits).collect();
        let Some(who) = rng.choice(waiting) else {
            return;
        };
        let Some(caller) = self.callers[who].take() else {
            return;
        };
        let number = caller.number;
        drop(caller);
        let was_offered = {
            let mut line = self.line();
            line.played[number].is_dropped = true;
            line.played[number].offered.is_some()
        };
        self.say(|| format!("[{number}] is dropped"));
        self.count(if was_offered {
            "dropped after it was written"
        } else {
            "dropped before it was written"
        });
    }

    fn the_server_answers(&mut self, rng: &mut Rng) {
        let most = if rng.bool() {
            usize::MAX
        } else {
            rng.usize(1..=3)
        };
        let done = self.line().execute(most);
        self.say(|| format!("the server carries out {done} commands"));
    }

    fn bytes_come(&mut self, rng: &mut Rng) {
        let most = [1, 2, 9, 60, usize::MAX][rng.usize(..5)];
        let came = self.line().deliver(most);
        self.say(|| format!("{came} bytes come"));
        self.wake();
    }

    fn all_comes(&mut self, _: &mut Rng) {
        let (done, came) = {
            let mut line = self.line();
            (line.execute(usize::MAX), line.deliver(usize::MAX))
        };
        self.say(|| format!("the server carries out {done} commands, and {came} bytes come"));
        self.wake();
    }

    fn a_push(&mut self, _: &mut Rng) {
        self.line().say(">2\r\n$10\r\ninvalidate\r\n*0\r\n");
        self.count("pushes");
    }

    fn room(&mut self, rng: &mut Rng) {
        let room = [0, 0, 1, 30, 500, usize::MAX, usize::MAX][rng.usize(..7)];
        self.line().room = room;
        self.say(|| format!("the socket has room for {room} bytes"));
        self.wake();
    }

    fn time_passes(&mut self, rng: &mut Rng) {
        let ms = [1, 2, 3, 20, 50, 120][rng.usize(..6)];
        self.advance(Duration::from_millis(ms));
    }

    fn a_fault(&mut self, rng: &mut Rng) {
        if self.is_closed() {
            return;
        }
        let (what, happens) = FAULTS[rng.usize(..FAULTS.len())];
        self.say(|| what.to_owned());
        self.count(what);
        happens(self, rng);
        self.wake();
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.line().refusal.get_or_insert(refusal);
    }

    fn refuse_by_an_error(&mut self, rng: &mut Rng) {
        // TLS alone sends a part of what it then refuses.
        let is_tls = self.line().is_buffered;
        self.refuse(Refusal::Error(if is_tls { rng.usize(..100) } else { 0 }));
    }

    fn void(&mut self) {
        self.is_voided |= !self.is_closed();
        self.connection.void();
    }

    fn end_line(&mut self, end: LineEnd) {
        self.line().end.get_or_insert(end);
        self.peer = None;
    }

    /// Behind all answers: in between it would be taken for one of them, and no client could tell.
    fn unasked(&mut self) {
        let mut line = self.line.lock();
        let is_done = |caller: &Caller| line.played[caller.number].answered.is_some();
        if line.is_idle()
            && line.executed == line.commands.len()
            && self.callers.iter().flatten().all(is_done)
        {
            line.say(":7\r\n");
            self.is_rogue = true;
            drop(line);
            self.count("answers to no request");
        }
    }

    /// No more faults: what is due must happen.
    fn calm(&mut self) {
        self.say(|| "from here on all goes well".to_owned());
        let mut rng = self.dice.harmless(Point::Plan, 0);
        self.line().room = usize::MAX;
        self.wake();
        loop {
            self.all_tasks(&mut rng);
            let mut line = self.line.lock();
            let moved = line.execute(usize::MAX) + line.deliver(usize::MAX);
            drop(line);
            self.wake();
            if self.is_broken() || (moved == 0 && self.woken.ready.lock().is_empty()) {
                break;
            }
        }
        if !self.is_frozen || self.is_closed() {
            self.check_calm();
        }
    }

    /// It ends, and leaves nothing.
    fn last(&mut self) {
        let mut rng = self.dice.harmless(Point::Plan, 0);
        if self.is_broken() {
            return;
        }
        self.say(|| "the end".to_owned());
        match rng.u8(..5) {
            0 => self.connection.close(),
            1 => self.void(),
            2 => self.connection.leave(),
            3 if !self.is_frozen => {
                self.end_line(LineEnd::Closed);
                self.wake();
            }
            _ => self.connection.end_runtime(),
        }
        self.all_tasks(&mut rng);
        if !self.is_closed() {
            self.line().breach("L2", "the socket stays open");
        }
        self.is_rogue = false;
        self.is_frozen = false;
        self.new_callers(&mut rng);
        self.all_tasks(&mut rng);
        self.check_calm();
    }
}
