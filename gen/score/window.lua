-- A window: a row sees window_left keys before its position, and window_right after it.

return {
  left = { key = "window_left", first = function(s) return s.place - s.cfg.window_left end },
  right = { key = "window_right", last = function(s) return s.place + s.cfg.window_right end },
}
