-- HAProxy asks Tollgate before a request goes on: `http-request lua.tollgate` leaves the answer in variables of the transaction.
-- Needs HAProxy 2.5 or newer with Lua, such as Debian's.

local address = os.getenv("TOLLGATE") or "127.0.0.1:8080"
local timeout_ms = 1000
-- HAProxy 2.6 tries four times, a second apart. So after a failure no server is asked for a while.
local rest_seconds = 5
local resting_until = 0

-- Variables and the headers of the answer that they hold.
local kept = {
    retry_after = "retry-after",
    ratelimit = "ratelimit",
    ratelimit_policy = "ratelimit-policy",
    limit = "x-ratelimit-limit",
    remaining = "x-ratelimit-remaining",
    reset = "x-ratelimit-reset",
}

core.register_action("tollgate", { "http-req" }, function(txn)
    if core.now().sec < resting_until then
        txn:set_var("txn.tollgate_status", 0)
        return
    end
    -- Only what is named here is sent, so a client cannot add to it. Without Accept, the body of a refusal is problem+json.
    local headers = {
        ["host"] = { "tollgate" },
        ["x-forwarded-for"] = { txn.f:src() },
        ["x-forwarded-method"] = { txn.f:method() },
        ["x-forwarded-host"] = { txn.f:req_hdr("host") },
        ["x-forwarded-uri"] = { txn.f:pathq() },
    }
    for _, name in ipairs({ "x-api-key", "authorization" }) do
        local value = txn.f:req_hdr(name)
        if value and value ~= "" then
            headers[name] = { value }
        end
    end
    local answer = core.httpclient():get({
        url = "http://" .. address .. "/v1/authz",
        headers = headers,
        timeout = timeout_ms,
    })
    local status = answer and answer.status or 0
    -- HAProxy makes up an answer of its own when there is none, or none in time. Each of Tollgate's says no-store.
    local caching = answer and answer.headers and answer.headers["cache-control"]
    local is_real = caching and caching[0] == "no-store"
    if not is_real and (status == 502 or status == 503 or status == 504) then
        status = 0
    end
    if status == 0 then
        resting_until = core.now().sec + rest_seconds
    end
    txn:set_var("txn.tollgate_status", status)
    for variable, name in pairs(kept) do
        local values = answer and answer.headers and answer.headers[name]
        if values and values[0] then
            txn:set_var("txn.tollgate_" .. variable, values[0])
        end
    end
    if status ~= 200 and answer and answer.body then
        txn:set_var("txn.tollgate_body", answer.body)
    end
end)
