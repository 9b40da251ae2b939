//! `vmmc top`: what the nodes of this user do, live.
//!
//! Invariant: it only looks; a node that goes away disappears from the view, one that comes appears.

mod draw;
mod sample;

use crate::args::Top;
use crate::failure::Failure;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use sample::{Sampler, View};
use std::time::{Duration, Instant};

/// Size of the text that `--once` prints.
const TEXT_SIZE: (u16, u16) = (120, 60);

/// Runs the command.
pub(crate) fn run(top: &Top) -> Result<(), Failure> {
    let mut sampler = Sampler::new(top.name.clone());
    let interval = Duration::from_millis(top.interval_ms);
    sampler.look()?;
    if top.once {
        std::thread::sleep(interval);
        let view = sampler.look()?;
        return crate::output(&draw::text(&view, TEXT_SIZE).map_err(Failure::new)?);
    }
    let mut terminal = ratatui::try_init()?;
    let result = live(&mut terminal, &mut sampler, interval);
    ratatui::restore();
    result
}

fn live(terminal: &mut ratatui::DefaultTerminal, sampler: &mut Sampler, interval: Duration) -> Result<(), Failure> {
    let mut view = View::default();
    let mut chosen = 0usize;
    let mut next = Instant::now();
    loop {
        if Instant::now() >= next {
            view = sampler.look()?;
            next = Instant::now() + interval;
        }
        chosen = chosen.min(view.nodes.len().saturating_sub(1));
        terminal.draw(|frame| draw::draw(frame, &view, chosen, true))?;
        if !poll(next.saturating_duration_since(Instant::now()))? {
            continue;
        }
        let Event::Key(key) = read()? else { continue };
        if key.kind != KeyEventKind::Press {
            continue;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
            KeyCode::Down | KeyCode::Tab => chosen += 1,
            KeyCode::Up => chosen = chosen.saturating_sub(1),
            _ => {}
        }
    }
}
