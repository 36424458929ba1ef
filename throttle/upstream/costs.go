package upstream

import (
	"cmp"
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/rampmeter/rampmeter/throttle"
)

// Usage is what a response's body says of its call's cost.
type Usage struct {
	// Attributes hold what the call really cost, as [throttle.Reservation.Adjust]
	// takes them.
	Attributes map[string]string
	// Quotas and Refusal are what an API tells in the body instead of in headers.
	Quotas  []throttle.Reading
	Refusal *Refusal
}

// ShopifyGraphQL returns a reader of the cost that Shopify's GraphQL API tells in
// extensions.cost, for limits whose cost is in that attribute: reserve what the query
// asks for (requestedQueryCost), or an estimate; what it really took is adjusted to.
// It also reads how full the bucket is, and that a query was throttled, which Shopify
// says inside a 200.
func ShopifyGraphQL(attribute string) func(body []byte) (Usage, bool) {
	type answer struct {
		Extensions struct {
			Cost struct {
				Actual   *float64 `json:"actualQueryCost"`
				Throttle *struct {
					Maximum   float64 `json:"maximumAvailable"`
					Currently float64 `json:"currentlyAvailable"`
					Restore   float64 `json:"restoreRate"`
				} `json:"throttleStatus"`
			} `json:"cost"`
		} `json:"extensions"`
		Errors []struct {
			Extensions struct {
				Code string `json:"code"`
			} `json:"extensions"`
		} `json:"errors"`
	}
	return func(body []byte) (Usage, bool) {
		var a answer
		if json.Unmarshal(body, &a) != nil {
			return Usage{}, false
		}
		u := Usage{Attributes: map[string]string{}}
		cost := a.Extensions.Cost
		if actual := cost.Actual; actual != nil && isTokens(*actual) {
			u.Attributes[attribute] = strconv.FormatInt(int64(math.Ceil(*actual)), 10)
		}
		if s := cost.Throttle; s != nil && isTokens(s.Maximum) && isTokens(s.Currently) && s.Restore >= 1 {
			seconds := min(s.Maximum/s.Restore, Longest.Seconds())
			u.Quotas = []throttle.Reading{{
				Quota: "points", Limit: int64(s.Maximum), Remaining: int64(min(s.Currently, s.Maximum)),
				Window: time.Duration(seconds * float64(time.Second)), Refills: true,
			}}
		}
		for _, e := range a.Errors {
			if e.Extensions.Code == "THROTTLED" {
				u.Refusal = &Refusal{Reason: QuotaUsed, Quota: "points"}
				u.Attributes[attribute] = "0"
			}
		}
		return u, len(u.Attributes) > 0 || len(u.Quotas) > 0
	}
}

// TokenUsage returns a reader of the tokens that LLM APIs tell in usage, for limits
// whose cost is in that attribute: total_tokens as OpenAI has it, or the sum of
// input_tokens and output_tokens as Anthropic does. Reserve an estimate, such as the
// prompt's length and max_tokens; what was really used is adjusted to.
func TokenUsage(attribute string) func(body []byte) (Usage, bool) {
	type answer struct {
		Usage *struct {
			Total  int64 `json:"total_tokens"`
			Input  int64 `json:"input_tokens"`
			Output int64 `json:"output_tokens"`
		} `json:"usage"`
	}
	return func(body []byte) (Usage, bool) {
		var a answer
		if json.Unmarshal(body, &a) != nil || a.Usage == nil {
			return Usage{}, false
		}
		total := cmp.Or(a.Usage.Total, a.Usage.Input+a.Usage.Output)
		if total <= 0 || total > mostTokens {
			return Usage{}, false
		}
		return Usage{Attributes: map[string]string{attribute: strconv.FormatInt(total, 10)}}, true
	}
}

// isTokens reports whether a number can be one of tokens.
func isTokens(n float64) bool { return n >= 0 && n <= mostTokens }
