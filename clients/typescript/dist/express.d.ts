/** Middleware for Express, and for everything that passes requests and responses of Node to it in the same way. */
import { type Attributes, type Tollgate } from "./index.js";
/** What the middleware needs of a response: Node's has it. */
export interface Response {
    readonly headersSent: boolean;
    statusCode: number;
    setHeader(name: string, value: string): unknown;
    end(body: string): unknown;
    once(event: "close", listener: () => void): unknown;
}
/**
 * Asks about each request with what `attributes` knows of it; undefined lets it pass unasked. A refused request is
 * answered with the decision's status and headers. The headers are added to the responses of the others.
 */
export declare function tollgate<Request>(client: Tollgate, attributes: (request: Request) => Attributes | undefined): (request: Request, response: Response, next: (error?: unknown) => void) => void;
